// A client for simulations of the gate: threads that send random commands, one after the other.
//
// The program would end on a GPU with queues without limit, whatever the order in which streams make progress: for each
// value that a stream waits for and that nothing writes yet, the client knows which streams may wait for it in turn. It
// writes a value only to a stream that does not, and always leaves one stream that waits for none (a thread that never
// synchronizes can write the values there). So if a simulation does not come to its end, gpupool has lost something.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "tests/unit/worker/gate/simulated_gpu.h"

namespace gpupool::test {

struct ClientCommand {
    enum class Kind : std::uint8_t {
        work,           // a launch
        failed,         // one that the driver refuses
        launch,         // of an executable graph
        change,         // of it
        copy_in,        // whose data comes later
        copy_out,       // whose data is sent when it is complete
        record,         // of an event
        wait_record,    //
        watch,          // the client wants to know when the event's record is complete
        follow,         // answered when the event's record was issued
        destroy_event,  //
        write_value,    // as a memory operation, or by a copy
        wait_value,     // as a memory operation, or by a kernel that spins
        synchronize,    // with a stream
        synchronize_context,
        synchronize_event,
        barrier,  // answered when all earlier commands were issued
        load,     // closes the driver for a while
        begin_capture,
        end_capture,
        end_stream,
        end_context
    };
    Kind kind = Kind::work;
    std::uint8_t stream = 0, thread = 0;
    bool variant = false;      // one of two ways to serve it
    std::uint64_t number = 0;  // of the value, the event, or the graph
    std::uint32_t cost = 1;
    std::uint32_t bytes = 0;  // beyond what every queued command is charged
};

class RandomClient {
  public:
    using Kind = ClientCommand::Kind;
    static constexpr std::size_t kStreams = 8, kGraphs = 2, kThreads = 4, kValues = 3;
    static constexpr std::size_t kLastContext = 1;  // the one that may die or end, and another takes its place
    static constexpr std::size_t kMaxBytes = 8u << 20;

    explicit RandomClient(std::mt19937_64& random)
        : random_(random), crowded_(random() % 4 == 0), heavy_(random() % 4 == 0) {}

    // Does nearly everything go to one stream?
    [[nodiscard]] bool crowded() const { return crowded_; }

    // The next command, if the choice that was made is possible.
    std::optional<ClientCommand> next() {
        ClientCommand command;
        command.thread = static_cast<std::uint8_t>(random_() % kThreads);
        command.stream =
            static_cast<std::uint8_t>(crowded_ && random_() % 16 != 0 ? kCrowdedStream : random_() % kStreams);
        command.variant = random_() % 2 == 0;
        command.bytes = heavy_ || random_() % 32 == 0 ? static_cast<std::uint32_t>(random_() % kMaxBytes) : 0;
        choose(command);
        return may_send(command) && send(command) ? std::optional(command) : std::nullopt;
    }
    // Writes a value that a stream waits for, or ends a capture. Nothing if all is written and ended.
    std::optional<ClientCommand> last() {
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            if (capturing_[stream] && !throttled[stream]) {
                capturing_[stream] = false;
                return ClientCommand{Kind::end_capture, static_cast<std::uint8_t>(stream)};
            }
        }
        for (std::size_t value = 0; value < kValues; ++value) {
            for (std::size_t stream = 1; values_[value] != 0 && stream < kStreams; ++stream) {
                ClientCommand command{Kind::write_value, static_cast<std::uint8_t>(stream), 0, false, values_[value]};
                if (may_send(command) && send(command)) {
                    return command;
                }
            }
        }
        return std::nullopt;
    }
    [[nodiscard]] bool has_last() const {
        return std::any_of(values_.begin(), values_.end(), [](std::uint64_t value) { return value != 0; }) ||
               std::any_of(capturing_.begin(), capturing_.end(), [](bool capturing) { return capturing; });
    }

    // Set by the simulation.
    std::array<bool, kThreads> waiting{};    // for an answer
    std::array<bool, kStreams> throttled{};  // no more work for that stream, or
    std::array<bool, kGraphs> graph_throttled{};
    bool session_throttled = false;

    // The stream, or all of the context, has ended, and another has taken its place.
    void renew(std::size_t stream) {
        ending_[stream] = capturing_[stream] = false;
        waits_[stream] = 0;
    }
    void forget_events(std::size_t context) {
        for (Event& event : events_) {
            event.usable = event.usable && SimulatedGpu::kKinds[event.stream].context != context;
        }
    }

  private:
    // A set of values that nothing writes yet.
    using Values = std::uint8_t;
    using Waits = std::array<Values, kStreams>;
    struct Event {
        std::size_t stream = 0;
        Values waits = 0;
        bool usable = false;
    };
    static constexpr std::size_t kCrowdedStream = 4;
    static constexpr std::size_t kEvents = 32;  // the last records, which commands may name

    void choose(ClientCommand& command) {
        const auto choice = random_() % 64;
        command.kind = choice < 24 ? Kind::work : kChoices[choice - 24];
        if (command.kind == Kind::launch || command.kind == Kind::change) {
            command.number = random_() % kGraphs;
            command.cost = command.kind == Kind::change ? 1 : random_() % 8 == 0 ? 1 + random_() % 960 : 2;
        } else if (names_event(command.kind)) {
            command.number = records_ - std::min<std::uint64_t>(random_() % kEvents, records_);
        }
        const bool rare = command.kind >= Kind::load;
        command.kind = rare && random_() % 4 != 0 ? Kind::work : command.kind;
        const auto& of = SimulatedGpu::kKinds[command.stream];
        if (command.kind == Kind::end_stream && of.legacy && of.context == kLastContext) {
            command.kind = Kind::end_context;
        }
    }
    static bool names_event(Kind kind) {
        return kind == Kind::wait_record || kind == Kind::watch || kind == Kind::follow ||
               kind == Kind::destroy_event || kind == Kind::synchronize_event;
    }
    static bool blocks(Kind kind) {
        return kind == Kind::synchronize || kind == Kind::synchronize_context || kind == Kind::synchronize_event;
    }

    // Is the command legal, and may the client send it now?
    [[nodiscard]] bool may_send(ClientCommand& command) const {
        const std::size_t stream = command.stream;
        const auto& kind = SimulatedGpu::kKinds[stream];
        if (waiting[command.thread] || session_throttled || ending_[stream] || throttled[stream] ||
            (blocks(command.kind) && command.thread == 0)) {
            return false;
        }
        if (names_event(command.kind) && (command.number == 0 || !events_[command.number % kEvents].usable)) {
            return false;
        }
        if (command.kind == Kind::end_stream && (kind.legacy || (crowded_ && stream == kCrowdedStream))) {
            return false;
        }
        if ((command.kind == Kind::launch || command.kind == Kind::change) && graph_throttled[command.number]) {
            return false;
        }
        const bool may_capture = !kind.legacy && command.kind != Kind::end_stream;
        switch (command.kind) {
            case Kind::end_capture: return capturing_[stream];
            case Kind::begin_capture: return may_capture && !capturing_[stream] && stream != kCrowdedStream;
            case Kind::work:
            case Kind::launch:
            case Kind::watch:
            case Kind::follow:
            case Kind::destroy_event:
            case Kind::synchronize_event:
            case Kind::synchronize_context:
            case Kind::change:
            case Kind::barrier:
            case Kind::load:
            case Kind::end_context: break;
            default:
                if (capturing_[stream]) {
                    return false;
                }
        }
        return !kind.legacy || command.kind == Kind::change || command.kind == Kind::end_context ||
               !captures_blocking(kind.context);
    }
    [[nodiscard]] bool captures_blocking(std::size_t context) const {
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            const auto& kind = SimulatedGpu::kKinds[stream];
            if (capturing_[stream] && kind.blocking && kind.context == context) {
                return true;
            }
        }
        return false;
    }

    // Notes what the command does. False if it must not be sent: values could then never be written.
    bool send(ClientCommand& command) {
        Waits waits = waits_;
        Values& own = waits[command.stream];
        own = of(waits, command.stream);
        switch (command.kind) {
            case Kind::wait_value: return wait_value(command, waits);
            case Kind::write_value: return write_value(command);
            case Kind::wait_record: own |= events_[command.number % kEvents].waits; break;
            case Kind::launch: own |= graphs_[command.number]; break;
            case Kind::begin_capture: capturing_[command.stream] = true; break;
            case Kind::end_capture: capturing_[command.stream] = false; break;
            case Kind::end_stream: ending_[command.stream] = true; break;
            default: break;
        }
        if (!leaves_one(waits)) {
            if (command.kind == Kind::begin_capture) {
                capturing_[command.stream] = false;
            }
            ending_[command.stream] = false;
            return false;
        }
        if (command.kind == Kind::launch) {
            graphs_[command.number] = own;
        } else if (command.kind == Kind::record) {
            command.number = ++records_;
            events_[records_ % kEvents] = {command.stream, own, true};
        } else if (command.kind == Kind::destroy_event) {
            events_[command.number % kEvents].usable = false;
        }
        waits_ = waits;
        return true;
    }
    bool wait_value(ClientCommand& command, Waits waits) {
        const auto free = std::find(values_.begin(), values_.end(), std::uint64_t{0});
        if (free == values_.end()) {
            return false;
        }
        waits[command.stream] |= static_cast<Values>(1u << (free - values_.begin()));
        if (!leaves_one(waits)) {
            return false;
        }
        command.number = *free = ++last_value_;
        waits_ = waits;
        return true;
    }
    bool write_value(ClientCommand& command) {
        const Values behind = of(waits_, command.stream);
        const std::uint64_t any = command.number;  // 0: one that may be written here
        for (std::size_t i = 0; i < kValues; ++i) {
            const auto bit = static_cast<Values>(1u << i);
            if (values_[i] == 0 || (any != 0 && values_[i] != any) || (behind & bit) != 0) {
                continue;
            }
            const auto replace = [&](Values& waits) { waits = (waits & bit) != 0 ? (waits & ~bit) | behind : waits; };
            Waits waits = waits_;
            std::for_each(waits.begin(), waits.end(), replace);
            waits[command.stream] = of(waits, command.stream);
            if (!leaves_one(waits)) {
                continue;
            }
            command.number = std::exchange(values_[i], 0);
            waits_ = waits;
            std::for_each(graphs_.begin(), graphs_.end(), replace);
            std::for_each(events_.begin(), events_.end(), [&](Event& event) { replace(event.waits); });
            return true;
        }
        return false;
    }
    // What the next operation of a stream would wait for.
    static Values of(const Waits& waits, std::size_t stream) {
        Values all = waits[stream];
        for (std::size_t other = 0; other < kStreams; ++other) {
            all |= SimulatedGpu::ordered(stream, other) ? waits[other] : Values{0};
        }
        return all;
    }
    // Is there a stream that waits for no value?
    [[nodiscard]] bool leaves_one(const Waits& waits) const {
        for (std::size_t stream = 1; stream <= kCrowdedStream; ++stream) {
            if (!ending_[stream] && !capturing_[stream] && of(waits, stream) == 0) {
                return true;
            }
        }
        return false;
    }

    static constexpr std::array<Kind, 40> kChoices{
        Kind::copy_in,
        Kind::copy_in,
        Kind::copy_in,
        Kind::copy_out,
        Kind::copy_out,
        Kind::copy_out,
        Kind::record,
        Kind::record,
        Kind::record,
        Kind::record,
        Kind::record,
        Kind::wait_record,
        Kind::wait_record,
        Kind::wait_record,
        Kind::wait_record,
        Kind::wait_value,
        Kind::wait_value,
        Kind::write_value,
        Kind::write_value,
        Kind::write_value,
        Kind::launch,
        Kind::launch,
        Kind::launch,
        Kind::change,
        Kind::change,
        Kind::barrier,
        Kind::watch,
        Kind::watch,
        Kind::follow,
        Kind::failed,
        Kind::synchronize,
        Kind::synchronize,
        Kind::synchronize,
        Kind::synchronize_context,
        Kind::synchronize_event,
        Kind::destroy_event,
        Kind::load,
        Kind::begin_capture,
        Kind::end_capture,
        Kind::end_stream,
    };

    std::mt19937_64& random_;
    const bool crowded_;  // so that the stream's credit ends
    const bool heavy_;    // queued commands take much memory
    Waits waits_{};
    std::array<Values, kGraphs> graphs_{};
    std::array<Event, kEvents> events_{};
    std::array<std::uint64_t, kValues> values_{};  // those that nothing writes yet
    std::array<bool, kStreams> ending_{}, capturing_{};
    std::uint64_t records_ = 0, last_value_ = 0;
};

}  // namespace gpupool::test
