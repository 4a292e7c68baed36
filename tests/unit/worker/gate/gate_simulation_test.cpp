// Random programs through the gate and the scheduler, over a GPU (simulated_gpu.h) and a clock that the test drives.
//
// A client (random_client.h) sends commands. In between the GPU makes progress, data arrives, issuers issue, helpers
// close and open the driver, the lease ends and begins, streams and contexts end, a context dies: all at random.
//
// The simulation keeps its own, simple record of every command, and checks with it
//   at every driver call          the order of the program, the length of the driver's queues, that the driver is open,
//                                 that work has the lease, that no handle is used after its end;
//   after every Gate::run()       that each first entry of a queue has a reason to wait, and that the gate names it;
//   after every step              that the scheduler has counted every operation once;
//   when the client learns that something is complete     that it is, and that the client has all data and all notices
//                                 that precede it;
//   at the end                    that every command was issued and every call answered, and that nothing is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "server/worker/gate/gate.h"
#include "tests/unit/worker/gate/random_client.h"

namespace gpupool::test {
namespace {

using worker::ContextState;
using worker::Entry;
using worker::EventState;
using worker::Gate;
using worker::Queue;
using worker::Reason;
using worker::Scheduler;
using worker::StreamState;
using worker::Submission;
using Kind = ClientCommand::Kind;
using Operation = SimulatedGpu::Operation;

constexpr std::size_t kDriverTakes = 1020;  // operations of a stream, before it blocks
constexpr std::size_t kStreams = RandomClient::kStreams;
constexpr std::size_t kGraphs = RandomClient::kGraphs;
constexpr std::size_t kIssuers = 2;

class SimulatedClock final : public TimeSource {
  public:
    [[nodiscard]] TimePoint now() const noexcept override { return now_; }
    using TimeSource::wait_until;
    bool wait_until(Condition&, UniqueLock&, TimePoint) override { return false; }
    void advance(Duration time) { now_ += time; }

  private:
    TimePoint now_{std::chrono::seconds(1)};
};

// What the simulation knows of a command, by its place in the program.
struct Sent {
    ClientCommand command;
    std::uint32_t generation = 0;  // of its stream
    enum class State : std::uint8_t { arrived, queued, handed_out, issued, abandoned } state = State::arrived;
    std::uint8_t parts = 1, data = 0, issued_parts = 0;  // of a copy to the device
    std::uint32_t on_gpu = 0;                            // the place of its last operation in the GPU's stream
    std::uint32_t behind = 0;  // of a wait: the place of its record, if that was queued, and 1;
                               // of a call that waits for a stream: the stream's last command, and 1
    bool answered = false;
    bool late = false;      // it arrived while the driver was closed
    bool in_queue = false;  // a call that waits in a queue for a place for its mark
    [[nodiscard]] bool is_over() const { return state == State::issued || state == State::abandoned; }
};

bool is_work(const ClientCommand& command) {
    return command.kind <= Kind::copy_out && command.kind != Kind::change;
}

// Is it in its stream's order?
bool is_of_stream(Kind kind) {
    return kind != Kind::change && kind != Kind::barrier && kind != Kind::watch && kind != Kind::follow &&
           kind != Kind::destroy_event && kind != Kind::synchronize_event && kind != Kind::load &&
           kind != Kind::synchronize_context && kind != Kind::synchronize && kind != Kind::end_context;
}

class Simulation {
  public:
    explicit Simulation(std::uint64_t seed)
        : random_(seed),
          client_(random_),
          length_((50 + random_() % 400) * (client_.crowded() ? 8 : 1)),
          stalls_(random_() % 8 == 0),
          uses_issuers_(random_() % 2 == 0),
          may_die_(random_() % 8 == 0),
          prints_(random_() % 4 == 0),
          word_memory_(api_, [](const std::function<void()>& run) { run(); }),
          scheduler_(
              api_, word_memory_, [this] { return closed_; }, [this] { drain(); }, clock_),
          gate_(scheduler_, {[this](const StreamState* stream, const Queue* queue, bool throttled) {
                                 note_throttled(stream, queue, throttled);
                             },
                             [this] { return closed_; }, [this] { return lease_; }}) {
        self = this;
        make_driver();
        for (std::size_t context = 0; context < SimulatedGpu::kContexts; ++context) {
            make_context(context);
        }
        for (std::size_t graph = 0; graph < kGraphs; ++graph) {
            graphs_[graph].limits = Queue::kOfGraph;
            graphs_[graph].name = graph;
        }
    }
    ~Simulation() { self = nullptr; }
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;

    // Returns how many steps it took.
    std::size_t run() {
        for (std::size_t tries = 0; sent_.size() < length_ && tries < length_ * 8 && !testing::Test::HasFailure();
             ++tries) {
            while (random_() % 3 == 0) {
                happen();
            }
            if (const std::optional<ClientCommand> command = client_.next()) {
                arrive(*command);
            }
        }
        sending_ = false;
        check_waits();
        for (std::size_t idle = 0; idle < kIdleSteps && !is_over() && !testing::Test::HasFailure();) {
            const std::optional<ClientCommand> command = client_.has_last() ? client_.last() : std::nullopt;
            if (command) {
                arrive(*command);
            }
            idle = happen() || command ? 0 : idle + 1;
        }
        if (!testing::Test::HasFailure()) {
            check_end();
        }
        return steps_;
    }

  private:
    static constexpr std::size_t kIdleSteps = 4000;

    // ---- the client's commands

    // A command that waits, in a queue or because the driver is closed. It is served again when it may go.
    class Again final : public Entry {
      public:
        Again(Simulation& simulation, std::size_t place) : simulation_(simulation), place_(place) {
            const ClientCommand& command = simulation.sent_[place].command;
            cost = command.cost;
            bytes += command.bytes;
            if (is_of_stream(command.kind) && command.kind < Kind::load) {
                kind = is_work(command) ? calls::Kind::work : calls::Kind::order;
            }
        }
        Reason advance() override {
            simulation_.gate_.admit(std::exchange(submission, std::nullopt));
            simulation_.serve(place_, true);
            return Reason::none;
        }
        void abandon(CUresult) override { simulation_.abandon(place_); }

      private:
        Simulation& simulation_;
        const std::size_t place_;
    };
    // The parts of a copy to the device.
    class CopyIn final : public Entry {
      public:
        CopyIn(Simulation& simulation, std::size_t place) : simulation_(simulation), place_(place) {
            kind = calls::Kind::work;
            bytes += simulation.sent_[place].command.bytes / 2;
        }
        Reason advance() override {
            Sent& sent = simulation_.sent_[place_];
            while (sent.issued_parts < sent.parts) {
                if (sent.issued_parts == sent.data) {
                    return Reason::data;
                }
                const bool last = ++sent.issued_parts == sent.parts;
                simulation_.issue(place_, last);
                last ? submission->end() : submission->count();
            }
            return Reason::none;
        }
        void abandon(CUresult) override { simulation_.abandon(place_); }

      private:
        Simulation& simulation_;
        const std::size_t place_;
    };

    StreamState& stream_of(const ClientCommand& command) { return *streams_[command.stream]; }
    ContextState& context_of(std::size_t stream) { return *contexts_[SimulatedGpu::kKinds[stream].context]; }

    void arrive(const ClientCommand& command) {
        ++steps_;
        const std::size_t place = sent_.size();
        Sent sent;
        sent.command = command;
        sent.generation = generations_[command.stream];
        sent.parts = static_cast<std::uint8_t>(command.kind == Kind::copy_in ? 1 + random_() % 3 : 1);
        sent_.push_back(sent);
        if (command.kind == Kind::copy_in) {
            for (std::size_t part = 0; part < sent.parts; ++part) {
                data_to_come_.push_back(place);
            }
        }
        client_.waiting[command.thread] = command.kind >= Kind::synchronize && command.kind <= Kind::synchronize_event;
        // An event is the client's from now on, whenever it is recorded.
        if (command.kind == Kind::record) {
            make_event(command);
        }
        if (gate_.open()) {
            serve(place, false);
        } else {
            gate_.arrive(command.thread, std::make_unique<Again>(*this, place));
            late_.push_back(place);
            sent_[place].late = true;
            late_bytes_ += command.bytes;
        }
        check_counts();
    }

    void queue(std::size_t place, std::unique_ptr<Entry> entry, Queue* graph = nullptr) {
        Sent& sent = sent_[place];
        sent.state = Sent::State::queued;
        queued_[sent.command.stream].push_back(place);
        if (graph != nullptr) {
            of_graph_[sent.command.number].push_back(place);
        }
        gate_.queue(stream_of(sent.command), std::move(entry), graph);
        check_bounds(sent.command.stream);
    }

    // The right to give the command to the driver. Empty if it was queued.
    std::optional<Submission> enter(std::size_t place, bool ready, Queue* graph = nullptr) {
        const ClientCommand& command = sent_[place].command;
        std::optional<Submission> submission;
        if (graph == nullptr || graph->empty() || ready) {
            submission = gate_.enter(stream_of(command), is_work(command) ? calls::Kind::work : calls::Kind::order,
                                     command.cost);
        }
        if (!submission) {
            auto entry = std::make_unique<Again>(*this, place);
            name_event(place, *entry);
            queue(place, std::move(entry), graph);
        }
        return submission;
    }
    void name_event(std::size_t place, Entry& entry) {
        Sent& sent = sent_[place];
        if (sent.command.kind == Kind::record) {
            entry.records_event(events_[sent.command.number].state);
        } else if (sent.command.kind == Kind::wait_record) {
            const std::size_t record = events_[sent.command.number].place;
            sent.behind = sent_[record].state == Sent::State::queued ? static_cast<std::uint32_t>(record + 1) : 0;
            entry.names(events_[sent.command.number].state);
        }
    }

    // Serves a command when it arrives, or, if it is ready, when it leaves its queue.
    void serve(std::size_t place, bool ready) {
        const Sent& sent = sent_[place];
        const ClientCommand& command = sent.command;
        const bool late = !late_.empty() && late_.front() == place;
        if (late) {
            late_.pop_front();
            ready = false;
        }
        const bool names_stream = is_of_stream(command.kind) || command.kind == Kind::synchronize;
        if (names_stream && sent.generation != generations_[command.stream]) {
            abandon(place);
            return;
        }
        if (command.kind != Kind::work || command.variant) {
            drain();
        }
        if (is_of_stream(command.kind)) {
            serve_in_order(place, ready);
        } else {
            serve_other(place, ready);
        }
    }

    void serve_in_order(std::size_t place, bool ready) {
        const ClientCommand command = sent_[place].command;
        StreamState& stream = stream_of(command);
        last_served_[command.stream] = std::max(last_served_[command.stream], place + 1);
        switch (command.kind) {
            case Kind::work:
                if (std::optional<Submission> submission = enter(place, ready)) {
                    launch(place, ready, std::move(*submission));
                }
                return;
            case Kind::failed:
                if (ready && command.variant) {  // refused before it enters: the gate ends the entry's submission
                    counted_[command.stream] += stream.capturing ? 0 : 1;
                    note_issued(place);
                    return;
                }
                if (std::optional<Submission> submission = enter(place, ready)) {
                    submission->cancel();
                    note_issued(place);
                }
                return;
            case Kind::launch:
                if (const auto submission = enter(place, ready, &graphs_[command.number])) {
                    issue(place);
                }
                return;
            case Kind::copy_in: copy_in(place, ready); return;
            case Kind::copy_out: copy_out(place, ready); return;
            case Kind::begin_capture:
            case Kind::end_capture:
            case Kind::end_stream:
                if (!ready && !stream.queue.empty()) {
                    queue(place, std::make_unique<Again>(*this, place));
                    return;
                }
                note_issued(place);
                if (command.kind == Kind::end_stream) {
                    scheduler_.mark(stream,
                                    [this, place](CUresult) { gate_.when_open([this, place] { end_stream(place); }); });
                    return;
                }
                if (command.kind == Kind::begin_capture && stream.unmarked != 0) {
                    scheduler_.mark(stream, {});
                }
                stream.capturing = command.kind == Kind::begin_capture;
                captures_since_[command.stream] = place + 1;
                return;
            case Kind::wait_record:
                if (!ready && events_[command.number].state->queued_record != 0) {
                    auto entry = std::make_unique<Again>(*this, place);
                    name_event(place, *entry);
                    queue(place, std::move(entry));
                    return;
                }
                [[fallthrough]];
            default:
                if (const auto submission = enter(place, ready)) {
                    issue(place);
                }
        }
    }

    // Through an issuer, if the launch depends on nothing but its stream.
    void launch(std::size_t place, bool ready, Submission submission) {
        const ClientCommand& command = sent_[place].command;
        StreamState& stream = stream_of(command);
        const bool independent = uses_issuers_ && !ready && !command.variant && !stream.legacy && !stream.capturing &&
                                 Scheduler::may_issue_elsewhere(stream);
        if (!independent) {
            drain();
            issue(place);
            return;
        }
        stream.issuer = static_cast<int>(command.stream % kIssuers);
        const std::uint32_t mark = submission.end_elsewhere();
        ++counted_[command.stream];
        if (mark != 0) {
            note_mark(command.stream, scheduler_.kernels_print());
        }
        sent_[place].state = Sent::State::handed_out;
        handed_[command.stream % kIssuers].push_back({place, mark, stream.marks.device_word});
        ++handed_count_;
    }

    void copy_in(std::size_t place, bool ready) {
        const ClientCommand& command = sent_[place].command;
        if (!command.variant) {
            auto entry = std::make_unique<CopyIn>(*this, place);
            sent_[place].state = Sent::State::queued;
            queued_[command.stream].push_back(place);
            gate_.put(stream_of(command), std::move(entry));
            return;
        }
        std::optional<Submission> submission = enter(place, ready);
        if (!submission) {
            return;
        }
        if (!ready) {
            sent_[place].state = Sent::State::queued;
            queued_[command.stream].push_back(place);
        }
        gate_.go_on(std::move(*submission), std::make_unique<CopyIn>(*this, place));
    }

    void copy_out(std::size_t place, bool ready) {
        const ClientCommand command = sent_[place].command;
        std::optional<Submission> submission = enter(place, ready);
        if (!submission) {
            return;
        }
        issue(place);
        submission->end();
        if (sent_[place].on_gpu != 0) {
            to_send_[command.stream].push_back(sent_[place].on_gpu);
        }
        scheduler_.mark(
            stream_of(command), [this, place](CUresult result) { note_data(place, result); }, 0,
            worker::Effect::sends_data);
    }

    void serve_other(std::size_t place, bool ready) {
        const ClientCommand command = sent_[place].command;
        switch (command.kind) {
            case Kind::change:
                if (!ready && !graphs_[command.number].empty()) {
                    sent_[place].state = Sent::State::queued;
                    of_graph_[command.number].push_back(place);
                    gate_.queue(graphs_[command.number], std::make_unique<Again>(*this, place));
                    return;
                }
                issue(place);
                return;
            case Kind::barrier:
                sent_[place].state = Sent::State::queued;
                barriers_.push_back({place, late_.empty() ? place : late_.back()});
                gate_.after_all([this, place] { end_barrier(place); });
                return;
            case Kind::load:
                EXPECT_FALSE(closed_);
                closed_ = true;
                note_issued(place);
                return;
            case Kind::end_context: end_context(); break;
            case Kind::synchronize:
            case Kind::synchronize_context: synchronize(place); break;
            case Kind::destroy_event: destroy_event(command.number); break;
            default: serve_event(place); break;
        }
        note_issued(place);
    }

    void serve_event(std::size_t place) {
        const ClientCommand& command = sent_[place].command;
        const std::shared_ptr<EventState> event = events_[command.number].state;
        const std::size_t record = events_[command.number].place;
        if (event->queued_record != 0) {
            following_.push_back({place, record});
        }
        gate_.after_record(event, [this, place, record, event] {
            std::erase_if(following_, [&](const Following& each) { return each.place == place; });
            EXPECT_TRUE(sent_[record].is_over()) << "answered before the record was issued";
            if (sent_[place].command.kind == Kind::follow) {
                sent_[place].answered = true;
                return;
            }
            const bool answers = sent_[place].command.kind == Kind::synchronize_event;
            if (!answers) {
                watched_.push_back({place, record});
            }
            scheduler_.when_recorded(
                *event, [this, place, record](CUresult result) { note_recorded(place, record, result); },
                answers ? worker::Effect::answers : worker::Effect::notifies_of_event);
        });
    }

    // The last commands of the streams that the call waits for.
    using Lasts = std::array<std::size_t, kStreams>;  // places + 1, or 0
    Lasts last_in_context(std::size_t place, bool blocking_only = false) const {
        Lasts lasts{};
        const std::size_t context = SimulatedGpu::kKinds[sent_[place].command.stream].context;
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            const auto& kind = SimulatedGpu::kKinds[stream];
            if (kind.context == context && (kind.blocking || !blocking_only)) {
                lasts[stream] = streams_[stream]->capturing ? captures_since_[stream] : last_served_[stream];
            }
        }
        return lasts;
    }
    void synchronize(std::size_t place) {
        const ClientCommand& command = sent_[place].command;
        std::array<std::size_t, kStreams> lengths{};
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            lengths[stream] = streams_[stream]->queue.entries.size();
        }
        StreamState& stream = stream_of(command);
        if (command.kind == Kind::synchronize_context) {
            gate_.when_complete(*stream.context, when_complete(place, last_in_context(place)));
        } else if (stream.legacy) {
            gate_.when_blocking_complete(*stream.context, when_complete(place, last_in_context(place, true)));
        } else {
            Lasts last{};
            last[command.stream] = last_served_[command.stream];
            gate_.when_complete(stream, when_complete(place, last));
        }
        for (std::size_t of = 0; of < kStreams; ++of) {  // an entry that will wait
            if (streams_[of]->queue.entries.size() > lengths[of]) {
                queued_[of].push_back(place);
                sent_[place].in_queue = true;
            }
        }
        sent_[place].behind = static_cast<std::uint32_t>(last_served_[command.stream]);
    }
    worker::Action when_complete(std::size_t place, const Lasts& lasts) {
        return [this, place, lasts](CUresult result) { note_complete(place, lasts, result); };
    }

    // ---- what ends

    void abandon(std::size_t place) {
        Sent& sent = sent_[place];
        const ClientCommand& command = sent.command;
        if (sent.state == Sent::State::queued) {
            leave(queued_[command.stream], place);
            if (command.kind == Kind::launch) {
                std::erase(of_graph_[command.number], place);
            }
        }
        ASSERT_FALSE(sent.is_over());
        late_bytes_ -= sent.late ? command.bytes : 0;
        sent.state = Sent::State::abandoned;
        sent.answered = true;
        client_.waiting[command.thread] =
            client_.waiting[command.thread] && !(command.kind >= Kind::synchronize && command.kind < Kind::barrier);
        if (command.kind == Kind::write_value) {
            gpu_.reach_value(command.number);
        } else if (command.kind == Kind::record) {
            gpu_.reach_record(command.number);
        }
        std::erase(data_to_come_, place);
    }

    void end_stream(std::size_t place) {
        const std::size_t stream = sent_[place].command.stream;
        if (sent_[place].generation != generations_[stream]) {
            return;  // with its context
        }
        ASSERT_TRUE(gpu_.is_complete(stream, sent_[place].on_gpu))
            << "a stream was destroyed before its work was complete";
        StreamState& ended = *streams_[stream];
        ended.gone = true;
        ContextState& context = context_of(stream);
        gate_.forget(ended, context.lost);
        context.streams.erase(ended.client);
        make_stream(stream);
    }

    void end_context() {
        constexpr std::size_t kContext = RandomClient::kLastContext;
        gpu_.kill(kContext);
        contexts_[kContext]->each_stream(
            [&](StreamState& stream) { gate_.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED); });
        gate_.forget_events(objects_, *contexts_[kContext]);
        client_.forget_events(kContext);
        scheduler_.enter(nullptr);
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            if (SimulatedGpu::kKinds[stream].context == kContext) {
                EXPECT_TRUE(std::all_of(queued_[stream].begin(), queued_[stream].end(), [&](std::size_t place) {
                    return is_wait(place);
                })) << "commands of a stream that ended were not abandoned";
                queued_[stream].clear();
                to_send_[stream].clear();
            }
        }
        gpu_.renew(kContext);
        old_contexts_.push_back(std::move(contexts_[kContext]));
        make_context(kContext);
    }

    void make_context(std::size_t index) {
        contexts_[index] = std::make_unique<ContextState>();
        ContextState& context = *contexts_[index];
        context.driver = reinterpret_cast<CUcontext>(++contexts_made_ << 4);
        context.client = context.driver;
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            if (SimulatedGpu::kKinds[stream].context == index) {
                make_stream(stream);
            }
        }
    }
    void make_stream(std::size_t number) {
        const auto& kind = SimulatedGpu::kKinds[number];
        ContextState& context = *contexts_[kind.context];
        auto made = std::make_unique<StreamState>();
        StreamState& stream = kind.legacy ? context.legacy : *made;
        stream.client = kind.legacy ? nullptr : SimulatedGpu::handle(number);
        stream.driver = SimulatedGpu::handle(number);
        stream.context = &context;
        stream.legacy = kind.legacy;
        stream.blocking = kind.blocking;
        streams_[number] = &stream;
        if (!kind.legacy) {
            context.streams[stream.client] = std::move(made);
        }
        ++generations_[number];
        counted_[number] = 0;
        leaves_one_[number] = false;
        given_before_[number] = gpu_.given(number);
        last_served_[number] = 0;
        client_.renew(number);
        gpu_.renew_stream(number);
    }

    void make_event(const ClientCommand& command) {
        events_.resize(std::max<std::size_t>(events_.size(), command.number + 1));
        Event& event = events_[command.number];
        event.state = std::make_shared<EventState>();
        event.state->client = reinterpret_cast<CUevent>(command.number << 4);
        event.state->driver = event_handle(gpu_.make_event());
        event.state->context = streams_[command.stream]->context;
        event.place = sent_.size() - 1;
        objects_.events[event.state->client] = event.state;
    }
    void destroy_event(std::uint64_t number) {
        Event& event = events_[number];
        if (objects_.events.erase(event.state->client) != 0) {
            event.destroyed = true;
            scheduler_.retire(*event.state);
        }
    }

    // ---- driver calls

    void issue(std::size_t place, bool whole = true) {
        Sent& sent = sent_[place];
        const ClientCommand& command = sent.command;
        ASSERT_FALSE(sent.is_over()) << "issued twice";
        ASSERT_FALSE(closed_) << "a driver call while the driver is closed";
        if (is_work(command)) {
            ASSERT_TRUE(lease_ || streams_[command.stream]->capturing) << "work without the lease";
        }
        give(place);
        if (whole) {
            note_issued(place);
        }
    }
    // Gives the GPU what the command stands for.
    void give(std::size_t place) {
        Sent& sent = sent_[place];
        const ClientCommand& command = sent.command;
        check_order(place);
        if (command.kind == Kind::change || streams_[command.stream]->capturing) {
            return;
        }
        Operation operation;
        operation.number = command.number;
        operation.places = command.cost;
        switch (command.kind) {
            case Kind::record: operation.kind = Operation::Kind::record; break;
            case Kind::wait_record: operation.kind = Operation::Kind::wait_record; break;
            case Kind::write_value: operation.kind = Operation::Kind::write_value; break;
            case Kind::wait_value: operation.kind = Operation::Kind::wait_value; break;
            default: break;
        }
        const bool alone = gpu_.places(command.stream) == 0;
        if (command.kind == Kind::record) {
            gpu_.record_event(number_of(events_[command.number].state->driver), command.stream, operation);
        } else {
            gpu_.give(command.stream, operation);
        }
        if (command.kind == Kind::wait_record) {
            EXPECT_FALSE(events_[command.number].of_gpu_is_gone) << "a wait for an event that was destroyed";
        }
        EXPECT_TRUE(alone || gpu_.places(command.stream) <= kDriverTakes) << gpu_.places(command.stream);
        if (sent.state != Sent::State::handed_out) {
            counted_[command.stream] += command.cost;
        }
    }

    void note_issued(std::size_t place) {
        Sent& sent = sent_[place];
        const ClientCommand& command = sent.command;
        if (sent.state == Sent::State::queued) {
            if (is_of_stream(command.kind)) {
                leave(queued_[command.stream], place);
            }
            if (command.kind == Kind::launch || command.kind == Kind::change) {
                leave(of_graph_[command.number], place);
            }
        }
        late_bytes_ -= sent.late ? command.bytes : 0;
        sent.state = Sent::State::issued;
        const std::uint32_t given = gpu_.given(command.stream);
        sent.on_gpu = given == given_before_[command.stream] ? 0 : given;
    }

    bool is_wait(std::size_t place) const {
        const Kind kind = sent_[place].command.kind;
        return kind == Kind::synchronize || kind == Kind::synchronize_context;
    }
    // The command is the first of that queue, but for waits, which the gate ends without notice.
    void leave(std::deque<std::size_t>& queue, std::size_t place) {
        while (!queue.empty() && is_wait(queue.front())) {
            queue.pop_front();
        }
        ASSERT_FALSE(queue.empty());
        ASSERT_EQ(queue.front(), place) << "not the first of its queue";
        queue.pop_front();
    }

    // Issuers issue what they were handed.
    void drain() {
        for (std::size_t issuer = 0; issuer < kIssuers; ++issuer) {
            while (issue_handed(issuer)) {
            }
        }
    }
    bool issue_handed(std::size_t issuer) {
        if (handed_[issuer].empty()) {
            return false;
        }
        const Handed next = handed_[issuer].front();
        handed_[issuer].pop_front();
        --handed_count_;
        EXPECT_FALSE(closed_) << "an issuer's driver call while the driver is closed";
        give(next.place);
        note_issued(next.place);
        if (next.mark != 0) {
            gpu_.give(sent_[next.place].command.stream, {Operation::Kind::mark, 1, next.mark, next.word});
        }
        return true;
    }

    // ---- what the client learns

    void note_answer(std::size_t place) {
        EXPECT_FALSE(sent_[place].answered) << "answered twice";
        sent_[place].answered = true;
        client_.waiting[sent_[place].command.thread] = false;
    }
    void note_complete(std::size_t place, const Lasts& lasts, CUresult result) {
        note_answer(place);
        for (std::size_t stream = 0; stream < kStreams && result == CUDA_SUCCESS; ++stream) {
            if (lasts[stream] != 0) {
                check_complete(place, lasts[stream] - 1);
            }
        }
    }
    void note_recorded(std::size_t place, std::size_t record, CUresult result) {
        note_answer(place);
        std::erase_if(watched_, [&](const Following& each) { return each.place == place; });
        if (result == CUDA_SUCCESS && sent_[record].state == Sent::State::issued) {
            check_complete(place, record);
        }
    }
    void note_data(std::size_t place, CUresult result) {
        note_answer(place);
        const std::size_t stream = sent_[place].command.stream;
        std::erase(to_send_[stream], sent_[place].on_gpu);
        EXPECT_TRUE(result != CUDA_SUCCESS || gpu_.is_complete(stream, sent_[place].on_gpu)) << "data sent too early";
    }
    // The client learns by the call at `place` that the command at `last` is complete.
    void check_complete(std::size_t place, std::size_t last) {
        const Sent& sent = sent_[last];
        const std::size_t stream = sent.command.stream;
        ASSERT_TRUE(sent.is_over()) << "command " << place << " was answered before " << last << " was issued";
        if (sent.on_gpu == 0 || sent.state == Sent::State::abandoned || sent.generation != generations_[stream]) {
            return;
        }
        ASSERT_TRUE(gpu_.is_complete(stream, sent.on_gpu)) << "command " << last << " is reported as complete";
        ASSERT_FALSE(gpu_.was_lost(stream, sent.on_gpu)) << "command " << last << " died with its context";
        const SimulatedGpu::Clock& before = gpu_.before(stream, sent.on_gpu);
        for (std::size_t other = 0; other < kStreams; ++other) {
            EXPECT_TRUE(to_send_[other].empty() || to_send_[other].front() > before[other])
                << "command " << place << " of kind " << static_cast<int>(sent_[place].command.kind)
                << " was answered before the data that precedes it was sent: last command " << last << " in stream "
                << stream << ", data of stream " << other;
        }
        if (sent_[place].command.kind == Kind::watch) {
            return;
        }
        for (const Following& watch : watched_) {
            const Sent& record = sent_[watch.record];
            EXPECT_FALSE(watch.place < place && record.state == Sent::State::issued &&
                         record.generation == generations_[record.command.stream] &&
                         record.on_gpu <= before[record.command.stream])
                << "command " << place << " was answered before the notice of the event at " << watch.record;
        }
    }

    // ---- checks

    void check_order(std::size_t place) {
        const ClientCommand& command = sent_[place].command;
        if (sent_[place].issued_parts > 1) {
            return;
        }
        const auto later = [&](std::size_t& last) {
            EXPECT_GT(place + 1, last) << "an earlier command of the queue was overtaken";
            last = std::max(last, place + 1);
        };
        if (command.kind == Kind::launch || command.kind == Kind::change) {
            later(last_of_graph_[command.number]);
        }
        if (command.kind == Kind::change || streams_[command.stream]->capturing) {
            return;
        }
        later(last_of_stream_[command.stream]);
        for (std::size_t other = 0; other < kStreams; ++other) {
            EXPECT_TRUE(!SimulatedGpu::ordered(command.stream, other) || last_of_stream_[other] < place + 1)
                << "command " << last_of_stream_[other] - 1 << " of stream " << other << " was issued before command "
                << place << " of stream " << int{command.stream};
        }
        if (command.kind == Kind::wait_record) {
            EXPECT_TRUE(sent_[events_[command.number].place].is_over()) << "a wait before its record";
        }
    }

    void end_barrier(std::size_t place) {
        for (std::size_t earlier = all_before_; earlier < place; ++earlier) {
            const Sent& sent = sent_[earlier];
            ASSERT_TRUE(sent.is_over() && (sent.command.kind != Kind::follow || sent.answered))
                << "barrier " << place << " ran before command " << earlier;
        }
        all_before_ = place;
        ASSERT_FALSE(barriers_.empty());
        ASSERT_EQ(barriers_.front().place, place);
        barriers_.pop_front();
        late_bytes_ -= sent_[place].late ? sent_[place].command.bytes : 0;
        sent_[place].state = Sent::State::issued;
    }

    // Why must the first entry of a stream's queue wait? None: it need not.
    Reason reason_of(std::size_t number, std::size_t place) const {
        const Sent& sent = sent_[place];
        const ClientCommand& command = sent.command;
        if ((command.kind == Kind::launch && of_graph_[command.number].front() != place) ||
            (sent.behind != 0 && !sent_[sent.behind - 1].is_over())) {
            return Reason::order;
        }
        const bool is_ordered = !is_wait(place);
        for (std::size_t other = 0; other < kStreams; ++other) {
            if (is_ordered && SimulatedGpu::ordered(number, other) && !queued_[other].empty() &&
                queued_[other].front() < place) {
                return Reason::order;
            }
        }
        if (closed_) {
            return Reason::driver_closed;
        }
        const StreamState& stream = *streams_[number];
        if (!stream.capturing && !scheduler_.has_room(stream, command.cost)) {
            return Reason::credit;
        }
        if (is_work(command) && !lease_) {
            return Reason::lease;
        }
        return command.kind == Kind::copy_in && sent.issued_parts == sent.data ? Reason::data : Reason::none;
    }

    // After Gate::run(): whatever is queued has a reason to wait, and the gate knows it.
    void check_reasons() {
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            std::deque<std::size_t>& queue = queued_[stream];
            while (queue.size() > streams_[stream]->queue.entries.size() && is_wait(queue.front())) {
                queue.pop_front();
            }
            ASSERT_EQ(queue.size(), streams_[stream]->queue.entries.size());
        }
        std::array<std::size_t, codec::kReasons> expected{};
        const auto count = [&](Reason reason) { ++expected.at(static_cast<std::size_t>(reason)); };
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            if (!queued_[stream].empty()) {
                const Reason reason = reason_of(stream, queued_[stream].front());
                ASSERT_NE(reason, Reason::none) << "command " << queued_[stream].front() << " could go";
                count(reason);
            }
        }
        std::size_t first = barriers_.empty() ? 0 : barriers_.front().place;
        for (const auto& queue : of_graph_) {
            if (!queue.empty() && sent_[queue.front()].command.kind == Kind::change) {
                ASSERT_TRUE(closed_) << "change " << queue.front() << " could go";
                count(Reason::driver_closed);
            }
            first = queue.empty() ? first : std::min(first, queue.front());
        }
        bool due = false;
        for (const Following& each : following_) {
            due = due || sent_[each.record].is_over();
            first = std::min(first, each.place);
            if (!sent_[each.record].is_over()) {
                count(Reason::order);
            }
        }
        ASSERT_TRUE(closed_ || !due) << "an action that waited for a record could run";
        for (const auto& queue : queued_) {
            first = queue.empty() ? first : std::min(first, queue.front());
        }
        if (!barriers_.empty()) {
            const Barrier& barrier = barriers_.front();
            const bool in_order = first == barrier.place && (late_.empty() || late_.front() > barrier.last_late);
            ASSERT_TRUE(closed_ || !in_order) << "barrier " << barrier.place << " could run";
            count(in_order ? Reason::driver_closed : Reason::order);
        }
        ASSERT_TRUE(closed_ || late_.empty()) << "command " << late_.front() << " could be served";
        for (std::size_t i = (due ? 1 : 0) + (late_.empty() ? 0 : 1); i != 0; --i) {
            count(Reason::driver_closed);
        }
        ASSERT_EQ(gate_.waits(), expected);
    }

    // Has the scheduler counted every operation once? One that it has yet to mark may be covered by a mark already.
    void check_counts() {
        for (std::size_t stream = 0; stream < kStreams; ++stream) {
            const std::int64_t more = std::int64_t{streams_[stream]->unmarked} - counted_[stream];
            ASSERT_TRUE(more == 0 || (more == 1 && leaves_one_[stream])) << "stream " << stream << ": " << more;
        }
        if (steps_ % 8 == 0) {
            const StreamState& any = *streams_[steps_ / 8 % kStreams];
            std::uint32_t credit = any.unmarked;
            for (const worker::Completion& completion : any.completions) {
                credit += completion.credit;
            }
            ASSERT_EQ(any.outstanding, credit) << "credit was lost";
        }
    }

    void check_bounds(std::size_t stream) {
        const Queue& queue = streams_[stream]->queue;
        ASSERT_LE(queue.entries.size(), queue.limits.throttle + (late_bytes_ == 0 ? 0 : Gate::kMaxArrivals));
        std::size_t bytes = 0;
        for (const StreamState* const each : streams_) {
            bytes += each->queue.bytes;
        }
        ASSERT_LE(bytes,
                  Gate::kBudgetBytes + kStreams * (RandomClient::kMaxBytes + worker::kQueuedCostBytes) + late_bytes_);
    }

    void note_throttled(const StreamState* stream, const Queue* queue, bool on) {
        bool& throttled = stream != nullptr  ? client_.throttled[SimulatedGpu::stream_of(stream->driver)]
                          : queue != nullptr ? client_.graph_throttled[queue->name]
                                             : client_.session_throttled;
        EXPECT_NE(throttled, on) << "throttled or released twice";
        throttled = on;
    }

    // ---- progress

    // Something else than a command. True if it may have made progress.
    bool happen() {
        ++steps_;
        clock_.advance(std::chrono::microseconds(5));
        const bool moved = happen(random_() % 16);
        check_counts();
        return moved;
    }
    bool happen(std::uint64_t choice) {
        switch (choice) {
            case 0:
                closed_ =
                    handed_count_ == 0 && (random_() % 4 == 0 || (stalls_ && sending_ && !client_.session_throttled));
                may_die_ = may_die_ && (random_() % 16 != 0 || (gpu_.kill(RandomClient::kLastContext), false));
                return false;
            case 1: lease_ = random_() % 4 != 0; return false;
            case 2:
            case 3: {
                if (data_to_come_.empty()) {
                    return false;
                }
                const std::size_t at = random_() % data_to_come_.size();
                ++sent_[std::exchange(data_to_come_[at], data_to_come_.back())].data;
                data_to_come_.pop_back();
                return true;
            }
            case 4:
            case 5:
            case 6: {
                drain();
                const bool moved = gate_.run();
                check_reasons();
                return moved;
            }
            case 7:
            case 8:
                drain();
                if (prints_ && random_() % 16 == 0) {
                    scheduler_.expect_output();
                }
                return scheduler_.poll(choice == 7 ? Scheduler::PollDepth::brief : Scheduler::PollDepth::idle);
            case 9: return !closed_ && issue_handed(random_() % kIssuers);
            default: return gpu_.step(random_() % SimulatedGpu::kStreams);
        }
    }

    // Before the last values are written: lets everything go that can. A call that waits for a stream must then not
    // wait for more than the stream's work: on a local GPU it would return, and the program might write the value only
    // then.
    void check_waits() {
        closed_ = false;
        lease_ = true;
        for (std::size_t idle = 0; idle < 64 && !testing::Test::HasFailure(); ++idle, ++steps_) {
            clock_.advance(std::chrono::microseconds(20));
            for (; !data_to_come_.empty(); data_to_come_.pop_back()) {
                ++sent_[data_to_come_.back()].data;
            }
            drain();
            const bool issued = gate_.run();
            const bool found = scheduler_.poll(Scheduler::PollDepth::thorough);
            closed_ = false;
            for (; gpu_.step(steps_ % SimulatedGpu::kStreams); ++steps_) {
                idle = 0;
            }
            idle = issued || found ? 0 : idle;
        }
        for (std::size_t place = 0; place < sent_.size(); ++place) {
            const Sent& sent = sent_[place];
            if (sent.command.kind != Kind::synchronize || sent.answered || sent.in_queue || !sent.is_over() ||
                sent.generation != generations_[sent.command.stream] || sent.behind == 0 ||
                SimulatedGpu::kKinds[sent.command.stream].legacy) {
                continue;
            }
            const Sent& last = sent_[sent.behind - 1];
            EXPECT_FALSE(last.is_over() && gpu_.is_complete(last.command.stream, last.on_gpu))
                << "call " << place << " waits for more than the work of stream " << int{sent.command.stream};
        }
    }

    [[nodiscard]] bool is_over() const {
        return !gate_.queues_any() && !gate_.has_actions() && gpu_.idle() && handed_count_ == 0 &&
               !client_.has_last() && !scheduler_.waiting();
    }

    void check_end() {
        EXPECT_FALSE(gate_.queues_any()) << "something was never issued";
        EXPECT_TRUE(gpu_.idle());
        EXPECT_FALSE(scheduler_.waiting());
        for (std::size_t place = 0; place < sent_.size(); ++place) {
            const Kind kind = sent_[place].command.kind;
            const bool is_call = (kind >= Kind::synchronize && kind <= Kind::synchronize_event) ||
                                 kind == Kind::copy_out || kind == Kind::watch || kind == Kind::follow;
            EXPECT_TRUE(sent_[place].is_over()) << "command " << place << " of kind " << static_cast<int>(kind);
            EXPECT_TRUE(sent_[place].answered || !is_call)
                << "command " << place << " of kind " << static_cast<int>(kind) << " was never answered";
        }
        const auto is_on = [](bool on) { return on; };
        EXPECT_FALSE(client_.session_throttled ||
                     std::any_of(client_.throttled.begin(), client_.throttled.end(), is_on) ||
                     std::any_of(client_.graph_throttled.begin(), client_.graph_throttled.end(), is_on))
            << "the client is still throttled";
        for (StreamState* const stream : streams_) {
            EXPECT_TRUE(stream->queue.empty());
            EXPECT_EQ(stream->queue.bytes, 0U);
            EXPECT_TRUE(scheduler_.is_idle(*stream) || stream->unmarked != 0 || stream->context->lost != CUDA_SUCCESS);
        }
        scheduler_.poll();
        for (const Event& event : events_) {
            EXPECT_TRUE(!event.destroyed || event.of_gpu_is_gone || event.state->driver == nullptr ||
                        event.state->context != streams_.front()->context)
                << "an event was never destroyed";
        }
    }

    // ---- the driver

    static CUevent event_handle(std::uint64_t number) { return reinterpret_cast<CUevent>(number << 4); }
    static std::uint64_t number_of(CUevent event) { return reinterpret_cast<std::uintptr_t>(event) >> 4; }
    // A call for the stream: its context must be current, and it must not capture.
    CUresult enter_driver(CUstream handle) {
        const std::size_t stream = SimulatedGpu::stream_of(handle);
        const std::size_t context = SimulatedGpu::kKinds[stream].context;
        EXPECT_EQ(contexts_[context]->driver, current_) << "the context is not current";
        EXPECT_FALSE(stream < kStreams && streams_[stream]->capturing) << "the stream captures";
        return gpu_.dead(context) ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
    }
    // The scheduler marks a stream. One operation may be left to a later mark.
    void note_mark(std::size_t stream, bool leaves_one) {
        counted_[stream] = 0;
        leaves_one_[stream] = leaves_one;
    }
    // The same, by a call for `handle`, which may be the helper of the legacy stream.
    void note_mark(CUstream handle, bool leaves_one) {
        EXPECT_FALSE(closed_) << "a mark while the driver is closed";
        const std::size_t stream = SimulatedGpu::stream_of(handle);
        for (const Handed& handed : handed_[stream % kIssuers]) {
            EXPECT_NE(sent_[handed.place].command.stream, stream) << "a mark before the launches that it stands for";
        }
        note_mark(stream < kStreams ? stream : stream == SimulatedGpu::kHelpers[0] ? 0 : 5, leaves_one);
    }
    CUresult query(CUevent event) {
        const std::uint64_t number = number_of(event);
        EXPECT_TRUE(gpu_.is_alive(number)) << "a query of an event that was destroyed";
        return !gpu_.is_complete(number) ? CUDA_ERROR_NOT_READY
               : gpu_.was_lost(number)   ? CUDA_ERROR_ILLEGAL_ADDRESS
                                         : CUDA_SUCCESS;
    }

    void make_driver() {
        api_.cuCtxSetCurrent = [](CUcontext context) {
            self->current_ = context;
            return CUDA_SUCCESS;
        };
        api_.cuStreamCreate = [](CUstream* stream, unsigned) {
            const bool first = self->contexts_[0]->driver == self->current_;
            *stream = SimulatedGpu::handle(SimulatedGpu::kHelpers[first ? 0 : 1]);
            return CUDA_SUCCESS;
        };
        api_.cuEventCreate = [](CUevent* event, unsigned) {
            *event = event_handle(self->gpu_.make_event());
            return CUDA_SUCCESS;
        };
        api_.cuEventDestroy_v2 = [](CUevent event) {
            EXPECT_FALSE(self->closed_) << "an event is destroyed while the driver is closed";
            EXPECT_TRUE(self->gpu_.is_alive(number_of(event))) << "an event is destroyed twice";
            self->gpu_.destroy_event(number_of(event));
            for (Event& of : self->events_) {
                of.of_gpu_is_gone = of.of_gpu_is_gone || (of.state != nullptr && of.state->driver == event);
            }
            return CUDA_SUCCESS;
        };
        api_.cuEventRecord = [](CUevent event, CUstream stream) {
            const CUresult result = self->enter_driver(stream);
            self->note_mark(stream, true);
            self->gpu_.record_event(number_of(event), SimulatedGpu::stream_of(stream), {});
            return result;
        };
        api_.cuEventQuery = [](CUevent event) { return self->query(event); };
        api_.cuEventSynchronize = [](CUevent event) {
            const CUresult result = self->query(event);
            EXPECT_NE(result, CUDA_ERROR_NOT_READY) << "the dispatcher waits for an event";
            return result;
        };
        api_.cuStreamQuery = [](CUstream stream) {
            const CUresult result = self->enter_driver(stream);
            return result != CUDA_SUCCESS || self->gpu_.idle(SimulatedGpu::stream_of(stream)) ? result
                                                                                              : CUDA_ERROR_NOT_READY;
        };
        api_.cuStreamSynchronize = api_.cuStreamQuery;
        api_.cuStreamWriteValue32_v2 = [](CUstream stream, CUdeviceptr word, cuuint32_t number, unsigned) {
            const CUresult result = self->enter_driver(stream);
            self->note_mark(stream, self->scheduler_.kernels_print());
            self->gpu_.give(SimulatedGpu::stream_of(stream), {Operation::Kind::mark, 1, number, word});
            return result;
        };
        api_.cuMemHostRegister_v2 = [](void*, std::size_t, unsigned) { return CUDA_SUCCESS; };
        api_.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
            *device = reinterpret_cast<CUdeviceptr>(host);
            return CUDA_SUCCESS;
        };
    }

    struct Event {
        std::shared_ptr<EventState> state;
        std::size_t place = 0;  // of its record
        bool destroyed = false;
        bool of_gpu_is_gone = false;
    };
    struct Handed {
        std::size_t place;
        std::uint32_t mark;
        CUdeviceptr word;
    };
    struct Following {
        std::size_t place, record;
    };
    struct Barrier {
        std::size_t place;
        std::size_t last_late;  // a barrier that was late itself also waits until these have been served
    };

    static Simulation* self;
    std::mt19937_64 random_;
    RandomClient client_;
    const std::size_t length_;
    const bool stalls_;  // a driver call of a helper waits until the client can send nothing more
    const bool uses_issuers_;
    bool may_die_;
    bool sending_ = true;
    const bool prints_;
    SimulatedClock clock_;
    driver::Api api_;
    SimulatedGpu gpu_;
    bool closed_ = false, lease_ = true;
    worker::PinnedMemory word_memory_;
    std::array<std::unique_ptr<ContextState>, SimulatedGpu::kContexts> contexts_;
    std::vector<std::unique_ptr<ContextState>> old_contexts_;
    worker::Objects objects_;
    Scheduler scheduler_;
    std::array<Queue, kGraphs> graphs_;
    Gate gate_;
    std::array<StreamState*, kStreams> streams_{};
    std::array<std::uint32_t, kStreams> generations_{};
    std::array<std::uint32_t, kStreams> given_before_{};  // to the streams that had its number
    CUcontext current_ = nullptr;
    std::uintptr_t contexts_made_ = 0;

    std::vector<Sent> sent_;
    std::vector<Event> events_;  // by the number of the record
    std::array<std::deque<std::size_t>, kStreams> queued_;
    std::array<std::deque<std::size_t>, kGraphs> of_graph_;
    std::deque<std::size_t> late_;           // that arrived while the driver was closed
    std::deque<Barrier> barriers_;           // that have yet to run
    std::vector<Following> following_;       // calls that wait until a record is issued
    std::vector<Following> watched_;         // records of which the client awaits a notice
    std::vector<std::size_t> data_to_come_;  // a place for each part
    std::array<std::deque<Handed>, kIssuers> handed_;
    std::size_t handed_count_ = 0;
    std::array<std::deque<std::uint32_t>, kStreams> to_send_;             // copies whose data has yet to be sent
    std::array<std::uint32_t, kStreams> counted_{};                       // operations since the last mark
    std::array<bool, kStreams> leaves_one_{};                             // may that have left one operation unmarked?
    std::array<std::size_t, kStreams> last_of_stream_{}, last_served_{};  // place + 1
    std::array<std::size_t, kStreams> captures_since_{};  // place + 1 of the command that began the capture
    std::array<std::size_t, kGraphs> last_of_graph_{};
    std::size_t all_before_ = 0, steps_ = 0;
    std::size_t late_bytes_ = 0;  // of commands that were late and are not over
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
        Simulation simulation(seed);
        steps += simulation.run();
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
    RecordProperty("programs", static_cast<int>(seed));
}

}  // namespace
}  // namespace gpupool::test
