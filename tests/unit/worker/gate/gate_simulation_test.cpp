// Random programs through the gate and the scheduler, over a GPU and a clock that the test drives.
//
// A program is a list of commands: work, events, writes and waits of values, copies whose data comes later, launches
// and changes of executable graphs, barriers (Gate::after_all). A program is used if a GPU with queues without limit
// would complete it. Between the commands the GPU makes progress, data arrives, the driver closes and opens, and the
// lease ends and begins, all at random. Checked at every driver call: the order of the program, the length of the
// driver's queues, that the driver is open, and that work has the lease. At the end nothing may be left.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "server/worker/gate/gate.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/worker/fake_driver.h"

namespace gpupool::test {
namespace {

using worker::Entry;
using worker::Gate;
using worker::Queue;
using worker::Reason;
using worker::Scheduler;
using worker::StreamState;
using worker::Submission;

constexpr std::size_t kDriverTakes = 1020;  // operations of a stream, before it blocks

struct GpuOperation {
    enum class Kind { work, record, wait_record, write_value, wait_value, mark };
    Kind kind = Kind::work;
    std::uint64_t number = 0;  // of the value, of the record, or the mark
    CUdeviceptr word = 0;      // of a mark
    std::uint32_t places = 1;
    std::uint64_t sequence = 0;
};

// Streams that run their operations in order, with the rules of the legacy stream.
class SimulatedGpu {
  public:
    void make(CUstream stream, bool blocking, bool legacy) { streams_.push_back({stream, blocking, legacy, {}, 0}); }
    void give(CUstream stream, GpuOperation operation) {
        operation.sequence = ++sequence_;
        Stream& to = at(stream);
        to.places += operation.places;
        to.queue.push_back(operation);
    }
    [[nodiscard]] std::size_t places(CUstream stream) const { return at(stream).places; }
    [[nodiscard]] std::size_t length(CUstream stream) const { return at(stream).queue.size(); }
    [[nodiscard]] bool idle() const {
        return std::all_of(streams_.begin(), streams_.end(), [](const auto& each) { return each.queue.empty(); });
    }
    // Completes one operation that can run, searching from the `from`-th stream. False if there is none.
    bool step(std::size_t from) {
        for (std::size_t i = 0; i < streams_.size(); ++i) {
            Stream& stream = streams_[(from + i) % streams_.size()];
            if (!stream.queue.empty() && may_run(stream)) {
                run(stream);
                return true;
            }
        }
        return false;
    }

  private:
    struct Stream {
        CUstream handle;
        bool blocking, legacy;
        std::deque<GpuOperation> queue;
        std::size_t places;
    };
    [[nodiscard]] const Stream& at(CUstream stream) const {
        return *std::find_if(streams_.begin(), streams_.end(),
                             [&](const Stream& each) { return each.handle == stream; });
    }
    Stream& at(CUstream stream) { return const_cast<Stream&>(std::as_const(*this).at(stream)); }
    [[nodiscard]] bool may_run(const Stream& stream) const {
        const GpuOperation& first = stream.queue.front();
        for (const Stream& other : streams_) {
            const bool ordered = stream.legacy ? other.blocking : stream.blocking && other.legacy;
            if (ordered && &other != &stream && !other.queue.empty() && other.queue.front().sequence < first.sequence) {
                return false;
            }
        }
        return (first.kind != GpuOperation::Kind::wait_record || records_.contains(first.number)) &&
               (first.kind != GpuOperation::Kind::wait_value || values_.contains(first.number));
    }
    void run(Stream& stream) {
        const GpuOperation first = stream.queue.front();
        stream.queue.pop_front();
        stream.places -= first.places;
        if (first.kind == GpuOperation::Kind::record) {
            records_.insert(first.number);
        } else if (first.kind == GpuOperation::Kind::write_value) {
            values_.insert(first.number);
        } else if (first.kind == GpuOperation::Kind::mark) {
            __atomic_store_n(reinterpret_cast<std::uint32_t*>(first.word), static_cast<std::uint32_t>(first.number),
                             __ATOMIC_RELEASE);
        }
    }

    std::vector<Stream> streams_;
    std::set<std::uint64_t> records_, values_;
    std::uint64_t sequence_ = 0;
};

struct ProgramCommand {
    enum class Kind { work, copy_in, record, wait_record, write_value, wait_value, launch, change, barrier };
    Kind kind = Kind::work;
    std::size_t stream = 0;    // 0: the legacy stream
    std::uint64_t number = 0;  // of the value, of the record, or of the graph
    std::uint32_t cost = 1;
};

constexpr std::size_t kStreams = 6, kGraphs = 2;

bool is_blocking(std::size_t stream) {
    return stream <= 3;
}

// Where the commands of each kind are on a GPU.
std::optional<GpuOperation> operation_of(const ProgramCommand& command) {
    using Kind = ProgramCommand::Kind;
    switch (command.kind) {
        case Kind::record: return GpuOperation{GpuOperation::Kind::record, command.number};
        case Kind::wait_record: return GpuOperation{GpuOperation::Kind::wait_record, command.number};
        case Kind::write_value: return GpuOperation{GpuOperation::Kind::write_value, command.number};
        case Kind::wait_value: return GpuOperation{GpuOperation::Kind::wait_value, command.number};
        case Kind::change:
        case Kind::barrier: return std::nullopt;
        default: return GpuOperation{GpuOperation::Kind::work, 0, 0, command.cost};
    }
}

CUstream handle_of(std::size_t stream) {
    return reinterpret_cast<CUstream>((stream + 1) << 8);
}

class RandomProgram {
  public:
    explicit RandomProgram(std::mt19937_64& random) : random_(random) {
        const std::size_t length = 20 + random() % 400;
        // Now and then nearly everything goes to one stream, so that its credit ends.
        const bool crowded = random() % 4 == 0;
        while (commands.size() < (crowded ? length * 8 : length)) {
            add(crowded && random() % 16 != 0 ? 4 : random() % (kStreams + 1));
        }
        for (const std::uint64_t value : unwritten_) {
            commands.push_back({ProgramCommand::Kind::write_value, 1 + random() % kStreams, value});
        }
    }
    // Would it end on a GPU with queues without limit?
    [[nodiscard]] bool ends() const {
        SimulatedGpu gpu;
        for (std::size_t i = 0; i <= kStreams; ++i) {
            gpu.make(handle_of(i), i != 0 && is_blocking(i), i == 0);
        }
        for (const ProgramCommand& command : commands) {
            if (const auto operation = operation_of(command)) {
                gpu.give(handle_of(command.stream), *operation);
            }
        }
        while (gpu.step(0)) {
        }
        return gpu.idle();
    }
    std::vector<ProgramCommand> commands;

  private:
    void add(std::size_t stream) {
        using Kind = ProgramCommand::Kind;
        switch (random_() % 16) {
            case 0: commands.push_back({Kind::copy_in, stream}); return;
            case 1:
            case 2: commands.push_back({Kind::record, stream, ++records_}); return;
            case 3:
            case 4:
                if (records_ != 0) {
                    commands.push_back({Kind::wait_record, stream, 1 + random_() % records_});
                }
                return;
            case 5:
                if (unwritten_.size() < 3) {
                    commands.push_back({Kind::wait_value, stream, ++values_});
                    unwritten_.insert(values_);
                }
                return;
            case 6:
                if (!unwritten_.empty()) {
                    commands.push_back({Kind::write_value, stream, *unwritten_.begin()});
                    unwritten_.erase(unwritten_.begin());
                }
                return;
            case 7:
                commands.push_back({Kind::launch, stream, random_() % kGraphs,
                                    static_cast<std::uint32_t>(random_() % 8 == 0 ? 1 + random_() % 960 : 2)});
                return;
            case 8: commands.push_back({Kind::change, 0, random_() % kGraphs}); return;
            case 9: commands.push_back({Kind::barrier}); return;
            default: commands.push_back({Kind::work, stream}); return;
        }
    }

    std::mt19937_64& random_;
    std::uint64_t records_ = 0, values_ = 0;
    std::set<std::uint64_t> unwritten_;
};

class Simulation {
  public:
    explicit Simulation(std::uint64_t seed)
        : random_(seed),
          word_memory_(api_, [](const std::function<void()>& run) { run(); }),
          scheduler_(
              api_, word_memory_, [this] { return closed_; }, [] {}, clock_),
          gate_(scheduler_, {[this](const StreamState*, const Queue*, bool on) { throttled_ += on ? 1 : -1; },
                             [this] { return closed_; }, [this] { return lease_; }}) {
        self = this;
        make_driver();
        context_.driver = reinterpret_cast<CUcontext>(0xc0);
        for (std::size_t i = 0; i <= kStreams; ++i) {
            auto made = std::make_unique<StreamState>();
            StreamState& stream = i == 0 ? context_.legacy : *made;
            stream.client = i == 0 ? nullptr : handle_of(i);
            stream.driver = handle_of(i);
            stream.context = &context_;
            stream.legacy = i == 0;
            stream.blocking = is_blocking(i);
            streams_.push_back(&stream);
            gpu_.make(stream.driver, i != 0 && stream.blocking, i == 0);
            if (i != 0) {
                context_.streams[stream.client] = std::move(made);
            }
        }
        for (Queue& graph : graphs_) {
            graph.limits = Queue::kOfGraph;
        }
    }
    ~Simulation() { self = nullptr; }
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;

    // Returns how many steps it took.
    std::size_t run(const RandomProgram& program) {
        for (std::vector<bool>* const places : {&has_data_, &issued_, &is_barrier_}) {
            places->resize(program.commands.size());
        }
        for (const ProgramCommand& command : program.commands) {
            while (random_() % 3 == 0) {
                happen();
            }
            arrive(command, next_++);
            ++steps_;
        }
        // The client has sent everything.
        for (std::size_t idle = 0; (gate_.queues_any() || !gpu_.idle()) && idle < 4000;) {
            idle = happen() ? 0 : idle + 1;
        }
        for (int i = 0; i < 4; ++i) {
            scheduler_.poll(Scheduler::PollDepth::thorough);
        }
        check_end(program);
        return steps_;
    }

  private:
    // Issues a command: an entry, or for a command that needs no queue the same object at once.
    class Issued final : public Entry {
      public:
        Issued(Simulation& simulation, ProgramCommand command, std::size_t place)
            : simulation_(simulation), command_(command), place_(place) {
            cost = command.cost;
            using Kind = ProgramCommand::Kind;
            kind = command.kind == Kind::work || command.kind == Kind::launch || command.kind == Kind::copy_in
                       ? calls::Kind::work
                   : command.kind == Kind::change || command.kind == Kind::barrier ? calls::Kind::none
                                                                                   : calls::Kind::order;
        }
        Reason advance() override {
            if (command_.kind == ProgramCommand::Kind::copy_in && !simulation_.has_data_[place_]) {
                return Reason::data;
            }
            simulation_.issue(command_, place_);
            return Reason::none;
        }

      private:
        Simulation& simulation_;
        const ProgramCommand command_;
        const std::size_t place_;
    };
    // A command that arrived while the driver was closed.
    class Late final : public Entry {
      public:
        Late(Simulation& simulation, ProgramCommand command, std::size_t place)
            : simulation_(simulation), command_(command), place_(place) {}
        Reason advance() override {
            simulation_.serve(command_, place_);
            return Reason::none;
        }

      private:
        Simulation& simulation_;
        const ProgramCommand command_;
        const std::size_t place_;
    };

    void arrive(const ProgramCommand& command, std::size_t place) {
        if (gate_.open()) {
            serve(command, place);
        } else {
            gate_.arrive(0, std::make_unique<Late>(*this, command, place));
        }
    }

    void serve(const ProgramCommand& command, std::size_t place) {
        using Kind = ProgramCommand::Kind;
        auto entry = std::make_unique<Issued>(*this, command, place);
        StreamState& stream = *streams_[command.stream];
        switch (command.kind) {
            case Kind::barrier: gate_.after_all([this, place] { check_barrier(place); }); return;
            case Kind::change:
                if (graphs_.at(command.number).empty()) {
                    entry->advance();
                } else {
                    gate_.queue(graphs_.at(command.number), std::move(entry));
                }
                return;
            case Kind::launch: {
                Queue& graph = graphs_.at(command.number);
                if (!graph.empty()) {
                    gate_.queue(stream, std::move(entry), &graph);
                } else if (std::optional<Submission> submission = gate_.enter(stream, entry->kind, entry->cost)) {
                    entry->advance();
                    submission->end();
                } else {
                    gate_.queue(stream, std::move(entry), &graph);
                }
                return;
            }
            case Kind::copy_in: waiting_for_data_.push_back(place); [[fallthrough]];
            case Kind::work: gate_.put(stream, std::move(entry)); return;
            case Kind::record:
                records_[command.number] = std::make_shared<worker::EventState>();
                entry->records_event(records_[command.number]);
                gate_.queue(stream, std::move(entry));
                return;
            case Kind::wait_record: {
                const auto& event = records_.at(command.number);
                if (event->queued_record != 0) {
                    entry->after.push_back(event->queued_record);
                    gate_.queue(stream, std::move(entry));
                } else {
                    gate_.put(stream, std::move(entry));
                }
                return;
            }
            default: gate_.put(stream, std::move(entry)); return;
        }
    }

    // The driver call of a command.
    void issue(const ProgramCommand& command, std::size_t place) {
        using Kind = ProgramCommand::Kind;
        ASSERT_FALSE(issued_[place]) << "issued twice";
        issued_[place] = true;
        ASSERT_FALSE(closed_) << "a driver call while the driver is closed";
        if (command.kind == Kind::work || command.kind == Kind::launch || command.kind == Kind::copy_in) {
            ASSERT_TRUE(lease_) << "work without the lease";
        }
        check_order(command, place);
        if (const auto operation = operation_of(command)) {
            const CUstream stream = streams_[command.stream]->driver;
            const bool alone = gpu_.length(stream) == 0;
            gpu_.give(stream, *operation);
            ASSERT_TRUE(alone || gpu_.places(stream) <= kDriverTakes) << gpu_.places(stream);
        }
    }

    void check_order(const ProgramCommand& command, std::size_t place) {
        using Kind = ProgramCommand::Kind;
        const auto later = [&](std::size_t& last) {
            EXPECT_GT(place + 1, last) << "an earlier command of the queue was overtaken";
            last = std::max(last, place + 1);
        };
        if (command.kind == Kind::launch || command.kind == Kind::change) {
            later(last_of_graph_[command.number]);
        }
        if (command.kind == Kind::change) {
            return;
        }
        later(last_of_stream_[command.stream]);
        if (command.stream == 0) {
            for (std::size_t i = 1; i <= kStreams; ++i) {
                EXPECT_TRUE(!is_blocking(i) || last_of_stream_[i] < place + 1)
                    << "it had to wait for the legacy stream";
            }
        } else if (is_blocking(command.stream)) {
            EXPECT_LT(last_of_stream_[0], place + 1) << "the legacy stream had to wait for it";
        }
        if (command.kind == Kind::record) {
            recorded_.insert(command.number);
        } else if (command.kind == Kind::wait_record) {
            EXPECT_TRUE(recorded_.contains(command.number)) << "a wait before its record";
        }
    }

    void check_barrier(std::size_t place) {
        ++barriers_;
        for (std::size_t earlier = all_before_; earlier < place; ++earlier) {
            ASSERT_TRUE(issued_[earlier] || is_barrier_[earlier])
                << "barrier " << place << " ran before command " << earlier;
        }
        is_barrier_[place] = true;
        all_before_ = std::max(all_before_, place);
    }

    // Something else than a command. True if any command or any work made progress.
    bool happen() {
        ++steps_;
        clock_.advance(std::chrono::microseconds(5));
        switch (random_() % 12) {
            case 0: closed_ = random_() % 4 == 0; return false;
            case 1: lease_ = random_() % 4 != 0; return false;
            case 2:
                if (waiting_for_data_.empty()) {
                    return false;
                }
                has_data_[waiting_for_data_.front()] = true;
                waiting_for_data_.pop_front();
                return true;
            case 3:
            case 4:
            case 5: return gate_.run();
            case 6:
            case 7: scheduler_.poll(); return false;
            default: return gpu_.step(random_());
        }
    }

    void check_end(const RandomProgram& program) {
        EXPECT_FALSE(gate_.queues_any()) << "something was never issued";
        EXPECT_TRUE(gpu_.idle());
        for (std::size_t place = 0; place < program.commands.size(); ++place) {
            EXPECT_TRUE(issued_[place] || is_barrier_[place]) << place;
        }
        EXPECT_EQ(throttled_, 0);
        for (const StreamState* const stream : streams_) {
            EXPECT_TRUE(stream->queue.empty());
            EXPECT_EQ(stream->queue.bytes, 0U);
            EXPECT_LE(stream->outstanding, Scheduler::kMarkGraphsEvery + Scheduler::kGraphCredit);
        }
    }

    void make_driver() {
        api_.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
        api_.cuStreamCreate = [](CUstream* stream, unsigned) {
            *stream = handle_of(100);
            self->gpu_.make(*stream, true, false);
            return CUDA_SUCCESS;
        };
        api_.cuEventCreate = [](CUevent* event, unsigned) {
            *event = reinterpret_cast<CUevent>(self->next_event_ += 0x10);
            return CUDA_SUCCESS;
        };
        api_.cuEventRecord = [](CUevent event, CUstream stream) {
            self->recorded_at_[event] = stream;
            return CUDA_SUCCESS;
        };
        api_.cuEventQuery = [](CUevent event) {  // complete at the latest when nothing is left
            return self->gpu_.length(self->recorded_at_.at(event)) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
        };
        api_.cuStreamQuery = [](CUstream stream) {
            return self->gpu_.length(stream) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
        };
        api_.cuStreamWriteValue32_v2 = [](CUstream stream, CUdeviceptr word, cuuint32_t number, unsigned) {
            EXPECT_FALSE(self->closed_) << "a mark while the driver is closed";
            self->gpu_.give(stream, {GpuOperation::Kind::mark, number, word});
            return CUDA_SUCCESS;
        };
        api_.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) { return CUDA_SUCCESS; };
        api_.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
            *device = reinterpret_cast<CUdeviceptr>(host);
            return CUDA_SUCCESS;
        };
    }

    static Simulation* self;
    std::mt19937_64 random_;
    ManualClock clock_;
    driver::Api api_;
    SimulatedGpu gpu_;
    bool closed_ = false, lease_ = true;
    worker::PinnedMemory word_memory_;
    worker::ContextState context_;
    Scheduler scheduler_;
    std::array<Queue, kGraphs> graphs_;
    Gate gate_;
    std::vector<StreamState*> streams_;
    std::map<std::uint64_t, std::shared_ptr<worker::EventState>> records_;
    std::deque<std::size_t> waiting_for_data_;          // places of copies
    std::vector<bool> has_data_, issued_, is_barrier_;  // by place
    std::set<std::uint64_t> recorded_;
    std::map<std::uint64_t, std::size_t> last_of_graph_;
    std::map<std::size_t, std::size_t> last_of_stream_;  // place + 1
    std::map<CUevent, CUstream> recorded_at_;
    std::uintptr_t next_event_ = 0x10000;
    std::size_t next_ = 0, steps_ = 0, barriers_ = 0, all_before_ = 0;
    int throttled_ = 0;
};

Simulation* Simulation::self = nullptr;

#ifdef __SANITIZE_THREAD__
constexpr std::size_t kSteps = 50'000;  // one thread: nothing to find for ThreadSanitizer
#else
constexpr std::size_t kSteps = 1'000'000;
#endif

TEST(GateSimulation, AMillionRandomStepsKeepOrderAndBounds) {
    std::uint64_t seed = 1;
    for (std::size_t steps = 0; steps < kSteps; ++seed) {
        std::mt19937_64 random(seed);
        const RandomProgram program(random);
        if (!program.ends()) {
            continue;
        }
        Simulation simulation(seed);
        steps += simulation.run(program);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
    RecordProperty("programs", static_cast<int>(seed));
}

}  // namespace
}  // namespace gpupool::test
