// Orders a function's blocks: each block precedes its successors, loops are contiguous, and each loop ends with one
// synthetic latch block through which all its back edges go. With this order, running the group with the lowest
// position makes paths reconverge where they join, including at loop heads (see warp.h).
#include <algorithm>
#include <set>

#include "server/softgpu/exec/lower.h"

namespace gpupool::softgpu {
namespace {

struct Block {
    std::uint32_t first = 0, last = 0;  // [first, last) of the unordered code
    std::vector<std::uint32_t> next;    // successors; the fall-through first, if any
    bool falls_through = false;
    std::int32_t latch_of = -1;  // of a synthetic latch: the head of its loop
};

struct Loop {
    std::uint32_t head = 0;
    std::uint32_t latch = 0;
    std::vector<bool> members;
    std::size_t left = 0;  // members not yet placed
};

class Layout {
  public:
    explicit Layout(CompiledFunction& function) : function_(function), code_(function.code) {}

    void run() {
        find_blocks();
        search();
        find_loops();
        place();
        write();
    }

  private:
    static bool ends_block(const Inst& i) {
        switch (i.flow) {
            case Flow::jump:
            case Flow::branch:
            case Flow::branch_table:
            case Flow::ret:
            case Flow::exit:
            case Flow::trap: return true;
            default: return false;
        }
    }
    static bool goes_on(const Inst& i) {
        return !ends_block(i) || i.flow == Flow::branch ||
               (i.guard != kNoSlot && i.flow != Flow::jump && i.flow != Flow::branch_table);
    }

    void find_blocks() {
        std::vector<bool> leader(code_.size() + 1, false);
        leader[0] = true;
        for (std::size_t i = 0; i < code_.size(); ++i) {
            if (!ends_block(code_[i])) {
                continue;
            }
            leader[i + 1] = true;
            if (code_[i].flow == Flow::jump || code_[i].flow == Flow::branch) {
                leader[code_[i].target] = true;
            }
            if (code_[i].flow == Flow::branch_table) {
                for (const auto target : function_.tables[code_[i].extra]) {
                    leader[target] = true;
                }
            }
        }
        block_at_.assign(code_.size() + 1, 0);
        for (std::size_t i = 0; i < code_.size(); ++i) {
            if (leader[i]) {
                if (!blocks_.empty()) {
                    blocks_.back().last = static_cast<std::uint32_t>(i);
                }
                blocks_.push_back({static_cast<std::uint32_t>(i), 0, {}, false, -1});
            }
            block_at_[i] = static_cast<std::uint32_t>(blocks_.size() - 1);
        }
        blocks_.back().last = static_cast<std::uint32_t>(code_.size());
        for (auto& block : blocks_) {
            const Inst& end = code_[block.last - 1];
            // The lowering ends every body with an exit or a return, so the code's end is never reached by falling
            // through.
            block.falls_through = goes_on(end);
            if (block.falls_through) {
                block.next.push_back(block_at_[block.last]);
            }
            if (end.flow == Flow::jump || end.flow == Flow::branch) {
                block.next.push_back(block_at_[end.target]);
            }
            if (end.flow == Flow::branch_table) {
                for (const auto target : function_.tables[end.extra]) {
                    block.next.push_back(block_at_[target]);
                }
            }
        }
    }

    // Iterative depth-first search for reachable blocks, and for edges back to a block that is still open.
    void search() {
        reachable_.assign(blocks_.size(), false);
        std::vector<bool> open(blocks_.size(), false);
        std::vector<std::pair<std::uint32_t, std::size_t>> path{{0, 0}};
        reachable_[0] = open[0] = true;
        while (!path.empty()) {
            auto& [block, edge] = path.back();
            if (edge == blocks_[block].next.size()) {
                open[block] = false;
                path.pop_back();
                continue;
            }
            const std::uint32_t to = blocks_[block].next[edge++];
            if (open[to]) {
                back_edges_.insert({block, to});
            } else if (!reachable_[to]) {
                reachable_[to] = open[to] = true;
                path.emplace_back(to, 0);
            }
        }
    }

    void find_loops() {
        const std::size_t count = blocks_.size();
        std::vector<std::vector<std::uint32_t>> before(count);
        for (std::uint32_t block = 0; block < count; ++block) {
            if (!reachable_[block]) {
                continue;
            }
            for (const auto to : blocks_[block].next) {
                before[to].push_back(block);
            }
        }
        std::set<std::uint32_t> heads;
        for (const auto& [from, to] : back_edges_) {
            heads.insert(to);
        }
        for (const auto head : heads) {
            Loop loop;
            loop.head = head;
            loop.members.assign(count + heads.size(), false);
            loop.members[head] = true;
            std::vector<std::uint32_t> work;
            for (const auto& [from, to] : back_edges_) {
                if (to == head && !loop.members[from]) {
                    loop.members[from] = true, work.push_back(from);
                }
            }
            while (!work.empty()) {
                const auto block = work.back();
                work.pop_back();
                for (const auto from : before[block]) {
                    if (!loop.members[from]) {
                        loop.members[from] = true, work.push_back(from);
                    }
                }
            }
            loop.latch = static_cast<std::uint32_t>(blocks_.size());
            Block latch;
            latch.latch_of = static_cast<std::int32_t>(head);
            blocks_.push_back(latch);
            reachable_.push_back(true);
            loops_.push_back(std::move(loop));
        }
        for (auto& loop : loops_) {
            loop.members[loop.latch] = true;
            // A latch belongs to all enclosing loops.
            for (const auto& inner : loops_) {
                if (loop.members[inner.head]) {
                    loop.members[inner.latch] = true;
                }
            }
            loop.left = static_cast<std::size_t>(std::count(loop.members.begin(), loop.members.end(), true));
        }
        for (const auto& [from, to] : back_edges_) {
            const auto latch = std::find_if(loops_.begin(), loops_.end(), [head = to](const Loop& l) {
                                   return l.head == head;
                               })->latch;
            std::replace(blocks_[from].next.begin(), blocks_[from].next.end(), to, latch);
        }
    }

    void place() {
        const std::size_t count = blocks_.size();
        std::vector<std::uint32_t> waiting_for(count, 0);
        for (std::uint32_t block = 0; block < count; ++block) {
            if (!reachable_[block]) {
                continue;
            }
            for (const auto to : blocks_[block].next) {
                ++waiting_for[to];
            }
        }
        std::set<std::uint32_t> ready{0};
        std::vector<Loop*> open;
        while (!ready.empty()) {
            while (!open.empty() && open.back()->left == 0) {
                open.pop_back();
            }
            auto chosen = ready.begin();
            if (!open.empty()) {
                const auto inside =
                    std::find_if(ready.begin(), ready.end(), [&](std::uint32_t b) { return open.back()->members[b]; });
                if (inside != ready.end()) {
                    chosen = inside;
                } else {
                    open.pop_back();  // irreducible control flow: this loop cannot stay contiguous
                }
                if (inside == ready.end()) {
                    continue;
                }
            }
            const std::uint32_t block = *chosen;
            ready.erase(chosen);
            order_.push_back(block);
            for (auto& loop : loops_) {
                if (loop.members[block] && loop.left > 0) {
                    --loop.left;
                }
                if (loop.head == block) {
                    open.push_back(&loop);
                }
            }
            for (const auto to : blocks_[block].next) {
                if (--waiting_for[to] == 0) {
                    ready.insert(to);
                }
            }
        }
    }

    bool polls(const Loop& loop) const {
        for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
            if (!loop.members[block]) {
                continue;
            }
            for (std::uint32_t i = blocks_[block].first; i < blocks_[block].last; ++i) {
                if (code_[i].flow == Flow::pause || code_[i].flow == Flow::call) {
                    return true;
                }
                if (code_[i].flow == Flow::checked && (code_[i].mode & kMayPoll) != 0) {
                    return true;
                }
            }
        }
        return false;
    }

    void write() {
        std::vector<std::uint32_t> position(blocks_.size(), 0);
        std::vector<std::uint32_t> entries(blocks_.size(), 0);
        for (const auto block : order_) {
            for (const auto to : blocks_[block].next) {
                ++entries[to];
            }
        }
        std::vector<Inst> result;
        struct Fix {
            std::size_t instruction;
            std::uint32_t block;
        };
        std::vector<Fix> fixes;
        const auto jump_to = [&](std::uint32_t block, std::uint32_t line) {
            Inst jump;
            jump.flow = Flow::jump;
            jump.line = line;
            fixes.push_back({result.size(), block});
            result.push_back(jump);
        };
        for (std::size_t at = 0; at < order_.size(); ++at) {
            Block& block = blocks_[order_[at]];
            const std::int64_t following = at + 1 < order_.size() ? order_[at + 1] : -1;
            position[order_[at]] = static_cast<std::uint32_t>(result.size());
            if (block.latch_of >= 0) {
                const auto& loop =
                    *std::find_if(loops_.begin(), loops_.end(), [&](const Loop& l) { return l.latch == order_[at]; });
                jump_to(static_cast<std::uint32_t>(block.latch_of), code_[blocks_[loop.head].first].line);
                result.back().back_edge = true;
                result.back().mode = polls(loop) ? 1 : 0;
                continue;
            }
            for (std::uint32_t i = block.first; i < block.last; ++i) {
                result.push_back(code_[i]);
            }
            const Inst end = code_[block.last - 1];
            if (end.flow == Flow::branch) {
                fixes.push_back({result.size() - 1, block.next[1]});
            }
            if (end.flow == Flow::jump) {
                result.pop_back();
                leave(block.next[0], following, entries, end.line, result, jump_to);
            }
            if (end.flow == Flow::branch_table) {
                auto& table = function_.tables[end.extra];
                for (std::size_t i = 0; i < table.size(); ++i) {
                    table[i] = block.next[i];
                }
            }
            if (!block.falls_through) {
                continue;
            }
            const bool checked = end.flow == Flow::branch;  // a branch checks the other groups itself
            if (checked && block.next[0] == following) {
                continue;
            }
            leave(block.next[0], following, entries, end.line, result, jump_to);
        }
        for (const auto& fix : fixes) {
            result[fix.instruction].target = position[fix.block];
        }
        for (auto& table : function_.tables) {
            for (auto& target : table) {
                target = position[target];
            }
        }
        function_.code = std::move(result);
    }

    template <class Jump>
    static void leave(std::uint32_t to, std::int64_t following, const std::vector<std::uint32_t>& entries,
                      std::uint32_t line, std::vector<Inst>& result, Jump jump_to) {
        if (to != following) {
            return jump_to(to, line);
        }
        if (entries[to] < 2) {
            return;  // no other group can wait there
        }
        Inst join;
        join.flow = Flow::join;
        join.line = line;
        result.push_back(join);
    }

    CompiledFunction& function_;
    std::vector<Inst>& code_;
    std::vector<Block> blocks_;
    std::vector<std::uint32_t> block_at_;
    std::vector<bool> reachable_;
    std::set<std::pair<std::uint32_t, std::uint32_t>> back_edges_;
    std::vector<Loop> loops_;
    std::vector<std::uint32_t> order_;
};

}  // namespace

void lay_out_blocks(CompiledFunction& function) {
    Layout(function).run();
}

}  // namespace gpupool::softgpu
