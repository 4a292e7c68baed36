#include "server/worker/transfers/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "common/mutex.h"

namespace gpupool::worker {

class Staging::StreamUse {
  public:
    explicit StreamUse(std::size_t sizes) : chunks(sizes) {}
    std::vector<std::size_t> chunks;  // of each size
    std::size_t all = 0;
};

// Chunks that are free or that the pool may yet grow by.
std::size_t Staging::left(std::size_t size) const {
    const StagingSize& of = sizes_[size];
    const std::size_t more_bytes = of.max_bytes - std::min(of.max_bytes, pools_[size].allocated_bytes);
    return pools_[size].free.size() + more_bytes / of.chunk_bytes;
}

std::span<std::byte> Staging::take(StreamUsePtr& use, std::size_t bytes) {
    if (use == nullptr) {
        use = std::make_shared<StreamUse>(sizes_.size());
    }
    std::size_t size = 0;
    while (size + 1 < sizes_.size() && sizes_[size].chunk_bytes < bytes) {
        ++size;
    }
    UniqueLock lock(mutex_);
    if (use->chunks[size] != 0 && use->chunks[size] >= left(size)) {
        return {};
    }
    if (!pools_[size].free.empty() || grow(lock, size, sizes_[size].max_bytes)) {
        return hand_out(use, size);
    }
    for (std::size_t smaller = size + 1; use->all == 0 && smaller-- != 0;) {
        if (!pools_[smaller].free.empty() ||
            grow(lock, smaller, sizes_[smaller].max_bytes + sizes_[smaller].reserve_bytes)) {
            return hand_out(use, smaller);
        }
    }
    return {};
}

// Registers memory without the mutex: that takes long, and threads that return chunks would wait.
bool Staging::grow(UniqueLock& lock, std::size_t size, std::size_t max_bytes) {
    const std::size_t block_bytes = sizes_[size].block_bytes;
    if (pools_[size].allocated_bytes + block_bytes > max_bytes) {
        return false;
    }
    Block block;
    block.size = size;
    void* memory = nullptr;
    bool usable = false;
    {
        const Unlocked unlocked(lock, mutex_);
        memory = mmap(nullptr, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED) {
            (void)madvise(memory, block_bytes, MADV_HUGEPAGE);  // the registration touches and pins every page
        }
        usable = memory != MAP_FAILED && driver::call(api_.cuCtxGetCurrent, &block.context) == CUDA_SUCCESS &&
                 driver::call(api_.cuMemHostRegister_v2, memory, block_bytes,
                              static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE)) == CUDA_SUCCESS;
    }
    if (owners_ != nullptr) {
        block.context = owners_->of(block.context);
    }
    if (!usable) {
        if (memory != MAP_FAILED) {
            munmap(memory, block_bytes);
        }
        return false;
    }
    block.memory = static_cast<std::byte*>(memory);
    const std::size_t chunk_bytes = sizes_[size].chunk_bytes;
    block.holders.resize(block_bytes / chunk_bytes);
    for (std::size_t i = block.holders.size(); i-- != 0;) {
        pools_[size].free.push_back(block.memory + i * chunk_bytes);
    }
    pools_[size].allocated_bytes += block_bytes;
    blocks_.emplace(block.memory, std::move(block));
    return true;
}

Staging::Block& Staging::block_of(std::byte* chunk) {
    return std::prev(blocks_.upper_bound(chunk))->second;
}

Staging::StreamUsePtr& Staging::holder_of(Block& block, std::byte* chunk) {
    return block.holders[static_cast<std::size_t>(chunk - block.memory) / sizes_[block.size].chunk_bytes];
}

std::span<std::byte> Staging::hand_out(const StreamUsePtr& use, std::size_t size) {
    std::vector<std::byte*>& free = pools_[size].free;
    std::byte* const chunk = free.back();
    free.pop_back();
    Block& block = block_of(chunk);
    holder_of(block, chunk) = use;
    ++block.in_use;
    ++use->chunks[size];
    ++use->all;
    return {chunk, sizes_[size].chunk_bytes};
}

std::function<void()> Staging::take_back(std::byte* chunk) {
    Block& block = block_of(chunk);
    const StreamUsePtr holder = std::exchange(holder_of(block, chunk), nullptr);
    --holder->chunks[block.size];
    --holder->all;
    --block.in_use;
    if (!block.ending) {
        pools_[block.size].free.push_back(chunk);
        return {};
    }
    const auto ending = std::find_if(endings_.begin(), endings_.end(),
                                     [&](const Ending& other) { return other.context == block.context; });
    if (ending == endings_.end() || --ending->in_use != 0) {
        return {};
    }
    std::function<void()> unused = std::move(ending->unused);
    endings_.erase(ending);
    return unused;
}

void Staging::put(std::byte* chunk) {
    std::function<void()> unused;
    {
        const Lock lock(mutex_);
        if (withholding_) {
            withheld_.push_back(chunk);
            return;
        }
        unused = take_back(chunk);
    }
    if (unused) {
        unused();
    }
    returned_();
}

void Staging::withhold() {
    const Lock lock(mutex_);
    withholding_ = true;
}

Staging::Withheld Staging::release(CUcontext context, std::function<void()> unused) {
    Withheld withheld;
    {
        const Lock lock(mutex_);
        withholding_ = false;
        withheld.swap(withheld_);
        Ending ending{context, 0, {}};
        for (auto& [memory, block] : blocks_) {
            if (block.context == context) {
                block.ending = true;
                ending.in_use += block.in_use;
                std::erase_if(pools_[block.size].free, [&, ended = &block](std::byte* chunk)
                                                           GP_REQUIRES(mutex_) { return &block_of(chunk) == ended; });
            }
        }
        ending.in_use -= static_cast<std::size_t>(
            std::count_if(withheld.begin(), withheld.end(),
                          [&](std::byte* chunk) GP_REQUIRES(mutex_) { return block_of(chunk).context == context; }));
        if (ending.in_use != 0) {
            ending.unused = std::move(unused);
            endings_.push_back(std::move(ending));
            return withheld;
        }
    }
    unused();
    return withheld;
}

void Staging::ended(CUcontext context, const Withheld& withheld) {
    std::vector<std::function<void()>> unused;
    {
        const Lock lock(mutex_);
        for (std::byte* const chunk : withheld) {
            if (std::function<void()> other = take_back(chunk)) {
                unused.push_back(std::move(other));
            }
        }
        std::erase_if(blocks_, [&](const auto& entry) GP_REQUIRES(mutex_) {
            const Block& block = entry.second;
            if (!block.ending || block.context != context) {
                return false;
            }
            munmap(block.memory, sizes_[block.size].block_bytes);
            pools_[block.size].allocated_bytes -= sizes_[block.size].block_bytes;
            return true;
        });
    }
    for (const std::function<void()>& other : unused) {
        other();
    }
    returned_();
}

}  // namespace gpupool::worker
