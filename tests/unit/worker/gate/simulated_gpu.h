// A GPU for simulations of the gate and the scheduler: streams of two contexts that run their operations in order, with
// the rules of the legacy stream. It makes progress only in step().
//
// The GPU also keeps, for each operation that has run, which operations of all streams had to run before it. So a
// simulation can check that the client learns of their completions and data in that order.
//
// Streams are numbers below kStreams. A stream that is destroyed and made again keeps its number.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "protocol/calls/cuda_api.h"

namespace gpupool::test {

class SimulatedGpu {
  public:
    static constexpr std::size_t kContexts = 2;
    static constexpr std::size_t kStreams = 10;
    struct StreamKind {
        std::size_t context;
        bool legacy, blocking;
    };
    // The last two are the worker's own: those that carry the marks of the legacy streams.
    static constexpr std::array<StreamKind, kStreams> kKinds{{{0, true, true},
                                                              {0, false, true},
                                                              {0, false, true},
                                                              {0, false, true},
                                                              {0, false, false},
                                                              {1, true, true},
                                                              {1, false, true},
                                                              {1, false, false},
                                                              {0, false, true},
                                                              {1, false, true}}};
    static constexpr std::array<std::size_t, kContexts> kHelpers{8, 9};
    static constexpr bool ordered(std::size_t stream, std::size_t other) {
        const StreamKind &a = kKinds[stream], &b = kKinds[other];
        return stream != other && a.context == b.context && a.blocking && b.blocking && a.legacy != b.legacy;
    }

    // How many operations of each stream.
    using Clock = std::array<std::uint32_t, kStreams>;

    struct Operation {
        enum class Kind : std::uint8_t { work, record, wait_record, write_value, wait_value, mark };
        Kind kind = Kind::work;
        std::uint32_t places = 1;
        std::uint64_t number = 0;  // of the record, the value or the mark
        CUdeviceptr word = 0;      // of a mark
    };

    static CUstream handle(std::size_t stream) { return reinterpret_cast<CUstream>((stream + 1) << 8); }
    static std::size_t stream_of(CUstream handle) { return (reinterpret_cast<std::uintptr_t>(handle) >> 8) - 1; }

    // Puts an operation into the stream's queue. Returns its place in the stream, from 1.
    std::uint32_t give(std::size_t stream, const Operation& operation) {
        Stream& to = streams_[stream];
        if (contexts_[kKinds[stream].context].dead) {
            take_effect(operation, {}, false);
            return 0;
        }
        to.queue.push_back({operation, ++sequence_, to.generation});
        to.places += operation.places;
        return ++to.given;
    }
    // A new event of the driver.
    std::uint64_t make_event() {
        events_.push_back({});
        return events_.size();
    }
    void record_event(std::uint64_t event, std::size_t stream, const Operation& operation) {
        events_[event - 1].stream = stream;
        events_[event - 1].place = give(stream, operation);
    }
    void destroy_event(std::uint64_t event) { events_[event - 1].alive = false; }
    [[nodiscard]] bool is_alive(std::uint64_t event) const { return events_[event - 1].alive; }
    [[nodiscard]] bool is_complete(std::uint64_t event) const {
        const Event& of = events_[event - 1];
        return is_complete(of.stream, of.place);
    }
    [[nodiscard]] bool was_lost(std::uint64_t event) const {
        const Event& of = events_[event - 1];
        return dead(kKinds[of.stream].context) || was_lost(of.stream, of.place);
    }

    // The place of the last operation that the stream was given.
    [[nodiscard]] std::uint32_t given(std::size_t stream) const { return streams_[stream].given; }
    // Places that are taken in the driver's queue.
    [[nodiscard]] std::size_t places(std::size_t stream) const { return streams_[stream].places; }
    [[nodiscard]] bool idle(std::size_t stream) const { return streams_[stream].queue.empty(); }
    [[nodiscard]] bool idle() const {
        return std::all_of(streams_.begin(), streams_.end(), [](const Stream& each) { return each.queue.empty(); });
    }
    [[nodiscard]] bool is_complete(std::size_t stream, std::uint32_t place) const {
        return place <= streams_[stream].before.size();
    }
    [[nodiscard]] bool was_lost(std::size_t stream, std::uint32_t place) const {
        return is_complete(stream, place) && place != 0 && streams_[stream].lost[place - 1];
    }
    // What had to run before that operation, which is complete, and the operation itself.
    [[nodiscard]] const Clock& before(std::size_t stream, std::uint32_t place) const {
        return streams_[stream].before[place - 1];
    }

    // Completes one operation that can run, searching from the `from`-th stream. False if there is none.
    bool step(std::size_t from) {
        for (std::size_t i = 0; i < kStreams; ++i) {
            const std::size_t stream = (from + i) % kStreams;
            if (!streams_[stream].queue.empty() && may_run(stream)) {
                run(stream);
                return true;
            }
        }
        return false;
    }

    // The context dies: nothing in it runs any more, and no mark is written.
    void kill(std::size_t context) {
        contexts_[context].dead = true;
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            if (kKinds[stream].context == context) {
                Stream& of = streams_[stream];
                for (const Given& given : of.queue) {
                    take_effect(given.operation, {}, false);
                }
                of.queue.clear();
                of.places = 0;
                of.before.resize(of.given, of.clock);
                of.lost.resize(of.given, true);
            }
        }
    }
    [[nodiscard]] bool dead(std::size_t context) const { return contexts_[context].dead; }
    // Another context takes its place.
    void renew(std::size_t context) { contexts_[context].dead = false; }
    // Another stream takes the place of one that was destroyed.
    void renew_stream(std::size_t stream) {
        ++streams_[stream].generation;
        streams_[stream].places = 0;
    }
    // For a value whose write never comes, and a record.
    void reach_value(std::uint64_t number) { put(values_, number, {}); }
    void reach_record(std::uint64_t number) { put(records_, number, {}); }

  private:
    struct Given {
        Operation operation;
        std::uint64_t sequence;
        std::uint32_t generation;
    };
    struct Stream {
        std::deque<Given> queue;
        std::vector<Clock> before;  // of each operation that has run or was lost
        std::vector<bool> lost;     // when the context died
        Clock clock{};
        std::size_t places = 0;
        std::uint32_t given = 0, generation = 0;
    };
    struct Context {
        bool dead = false;
    };
    struct Event {
        std::size_t stream = 0;
        std::uint32_t place = 0;
        bool alive = true;
    };
    struct Reached {
        bool reached = false;
        Clock clock{};
    };

    static void put(std::vector<Reached>& all, std::uint64_t number, const Clock& clock) {
        all.resize(std::max<std::size_t>(all.size(), number + 1));
        all[number] = {true, clock};
    }
    static bool has(const std::vector<Reached>& all, std::uint64_t number) {
        return number < all.size() && all[number].reached;
    }
    static void join(Clock& clock, const Clock& other) {
        for (std::size_t i = 0; i < kStreams; ++i) {
            clock[i] = std::max(clock[i], other[i]);
        }
    }
    [[nodiscard]] bool may_run(std::size_t stream) const {
        const Given& first = streams_[stream].queue.front();
        for (std::size_t other = 0; other < kStreams; ++other) {
            if (ordered(stream, other) && !streams_[other].queue.empty() &&
                streams_[other].queue.front().sequence < first.sequence) {
                return false;
            }
        }
        return (first.operation.kind != Operation::Kind::wait_record || has(records_, first.operation.number)) &&
               (first.operation.kind != Operation::Kind::wait_value || has(values_, first.operation.number));
    }
    void run(std::size_t number) {
        Stream& stream = streams_[number];
        const Given first = stream.queue.front();
        stream.queue.pop_front();
        stream.places -= first.generation == stream.generation ? first.operation.places : 0;
        for (std::size_t other = 0; other < kStreams; ++other) {
            if (ordered(number, other)) {
                join(stream.clock, streams_[other].clock);
            }
        }
        if (first.operation.kind == Operation::Kind::wait_record) {
            join(stream.clock, records_[first.operation.number].clock);
        } else if (first.operation.kind == Operation::Kind::wait_value) {
            join(stream.clock, values_[first.operation.number].clock);
        }
        stream.clock[number] = static_cast<std::uint32_t>(stream.before.size() + 1);
        stream.before.push_back(stream.clock);
        stream.lost.push_back(false);
        take_effect(first.operation, stream.clock, true);
    }
    void take_effect(const Operation& operation, const Clock& clock, bool ran) {
        switch (operation.kind) {
            case Operation::Kind::record: put(records_, operation.number, clock); return;
            case Operation::Kind::write_value: put(values_, operation.number, clock); return;
            case Operation::Kind::mark:
                if (ran) {
                    __atomic_store_n(reinterpret_cast<std::uint32_t*>(operation.word),
                                     static_cast<std::uint32_t>(operation.number), __ATOMIC_RELEASE);
                }
                return;
            default: return;
        }
    }

    std::array<Stream, kStreams> streams_;
    std::array<Context, kContexts> contexts_;
    std::vector<Event> events_;
    std::vector<Reached> records_, values_;
    std::uint64_t sequence_ = 0;
};

}  // namespace gpupool::test
