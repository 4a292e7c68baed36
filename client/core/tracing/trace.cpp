#include "client/core/tracing/trace.h"

#include <errno.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "client/core/images/image_counts.h"
#include "client/core/session/session.h"
#include "client/core/tracing/timeline.h"
#include "common/files.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/quiet_thread.h"
#include "protocol/calls/table.h"

namespace gpupool::client::trace {
namespace {

// Shorter waits get no slice.
constexpr std::uint64_t kShownWaitNs = 1000;
constexpr std::uint64_t kSynchronizeEveryNs = 1'000'000'000;  // how often the clocks are related again
constexpr int kExchanges = 4;                                 // clock exchanges each time

struct OfThread {
    int depth = 0;  // nested calls count as the outer one's
    std::uint64_t bytes_sent = 0, bytes_received = 0, round_trips = 0;
    std::uint64_t waited_ns = 0;
};
thread_local OfThread mine;
thread_local std::uint32_t own_track = 0;  // 0: no track yet

struct Line {
    std::uint64_t calls = 0, failures = 0, bytes_sent = 0, bytes_received = 0, round_trips = 0;
    std::uint64_t time_ns = 0, waited_ns = 0;

    void add(const Line& other) {
        calls += other.calls;
        failures += other.failures;
        bytes_sent += other.bytes_sent;
        bytes_received += other.bytes_received;
        round_trips += other.round_trips;
        time_ns += other.time_ns;
        waited_ns += other.waited_ns;
    }
};

// Draws frames and their sizes on two tracks for each connection.
class Wire final : public wire::TrafficObserver {
  public:
    explicit Wire(Timeline& timeline) : timeline_(timeline) {}
    void sent(std::size_t line, std::size_t frames, std::size_t bytes, Moment begin, Moment end) override {
        timeline_.slice(track(line, true), "wire", frames == 1 ? "frame" : "frames", ns(begin), ns(end),
                        fmt::format("\"frames\":{},\"bytes\":{}", frames, bytes));
    }
    void received(std::size_t line, wire::FrameType type, std::size_t bytes, Moment begin, Moment end) override {
        timeline_.slice(track(line, false), "wire", name(type), ns(begin), ns(end), fmt::format("\"bytes\":{}", bytes));
    }

  private:
    Track track(std::size_t line, bool out) {
        const Track track{Actor::wire, static_cast<std::uint32_t>(2 * line + (out ? 1 : 2))};
        if (line < named_.size() && !named_[line][out ? 1 : 0].exchange(true, std::memory_order_relaxed)) {
            const char* const direction = out ? "sent" : "received";
            timeline_.name_track(track, line == 0 ? direction : fmt::format("lane {} {}", line - 1, direction));
        }
        return track;
    }
    static std::uint64_t ns(Moment moment) {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(moment.time_since_epoch()).count());
    }
    static const char* name(wire::FrameType type) {
        switch (type) {
            case wire::FrameType::replies: return "replies";
            case wire::FrameType::bulk: return "bulk";
            case wire::FrameType::ack: return "ack";
            default: return "frame";
        }
    }
    Timeline& timeline_;
    std::array<std::array<std::atomic<bool>, 2>, wire::Lanes::kMaxLanes + 1> named_{};
};

struct State {
    Mutex mutex;
    std::FILE* lines = nullptr;
    std::FILE* summary = nullptr;
    std::map<std::uint16_t, Line> sums GP_GUARDED_BY(mutex);
    const std::uint64_t start_ns = now_ns();

    // Set before `enabled` and never changed; the server's part begins later.
    std::unique_ptr<Timeline> timeline;
    std::unique_ptr<Wire> wire;
    std::unique_ptr<ServerTrace> server;
    std::once_flag following;
    std::atomic<bool> followed{false};
};

// Never destroyed. A forked child constructs it anew in place, because a thread that does not exist there may hold the
// lock.
alignas(State) std::byte storage[sizeof(State)];
State& state() {
    static State* const instance = new (storage) State;
    return *instance;
}

double microseconds(std::uint64_t ns) {
    return static_cast<double>(ns) / 1000.0;
}

// Errors are ignored: a full disk must not end the program.
void write(std::FILE* file, const std::string& line) {
    std::fwrite(line.data(), 1, line.size(), file);
}

void write_summary() {
    State& s = state();
    const Lock lock(s.mutex);
    if (s.summary == nullptr) {
        return;
    }
    write(s.summary, fmt::format("{:<48} {:>10} {:>8} {:>12} {:>12} {:>12} {:>14} {:>14}\n", "call", "calls", "failed",
                                 "us", "us waited", "round trips", "bytes sent", "bytes received"));
    const auto print = [&](std::string_view name, const Line& line) {
        write(s.summary, fmt::format("{:<48} {:>10} {:>8} {:>12.1f} {:>12.1f} {:>12} {:>14} {:>14}\n", name, line.calls,
                                     line.failures, microseconds(line.time_ns), microseconds(line.waited_ns),
                                     line.round_trips, line.bytes_sent, line.bytes_received));
    };
    std::vector<std::pair<std::uint16_t, const Line*>> lines;
    Line total;
    for (const auto& [opcode, line] : s.sums) {
        lines.emplace_back(opcode, &line);
        total.add(line);
    }
    // The longest waits first.
    std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second->waited_ns, a.second->time_ns) > std::pair(b.second->waited_ns, b.second->time_ns);
    });
    for (const auto& [opcode, line] : lines) {
        print(calls::name_of(opcode), *line);
    }
    print("(all)", total);
    write(s.summary, image_counts().summary());
    std::fflush(s.summary);
}

// Called at process exit.
void finish() {
    State& s = state();
    if (s.timeline != nullptr) {
        if (s.followed) {
            const OfThread before = mine;
            try {
                s.server->flush();
            } catch (const std::exception& exception) {
                log::warn("the server's part of the trace is incomplete: {}", exception.what());
            }
            mine = before;
        }
        s.timeline->finish(now_ns(), s.server->missing());
    }
    write_summary();
}

Status open(const std::string& name, std::FILE*& file) {
    if (name.empty()) {
        return {};
    }
    if (name == kStandardErrorName) {
        file = stderr;
        return {};
    }
    auto opened = open_to_append(name, 0666);
    if (!opened) {
        return opened.error().within("no summary");
    }
    file = ::fdopen(opened->get(), "a");
    if (file == nullptr) {
        return system_error("opening " + name, errno);
    }
    static_cast<void>(opened->release());  // owned by the stream now
    return {};
}

// Flushes the file every kFlushEvery and relates the clocks again from time to time.
void keep_up() {
    State& s = state();
    std::uint64_t synchronized = now_ns();
    while (true) {
        std::this_thread::sleep_for(kFlushEvery);
        s.timeline->flush();
        if (s.followed && now_ns() - synchronized >= kSynchronizeEveryNs) {
            synchronized = now_ns();
            s.server->synchronize(kExchanges);
        }
    }
}

Status start_timeline(const Config& config, Session& session) {
    State& s = state();
    auto file = Timeline::open(config.trace_file);
    if (!file) {
        return file.error().within("no trace");
    }
    s.timeline = std::make_unique<Timeline>(std::move(*file), config.trace_events);
    s.timeline->name_actor(Actor::program, program_invocation_short_name);
    s.timeline->name_actor(Actor::wire, "wire to " + session.server());
    s.timeline->name_actor(Actor::worker, "worker on " + session.server());
    s.timeline->name_actor(Actor::gpu, "GPU of " + session.server());
    s.timeline->name_track({Actor::worker, 1}, "dispatcher");
    s.wire = std::make_unique<Wire>(*s.timeline);
    s.server = std::make_unique<ServerTrace>(*s.timeline);
    try {
        quiet_thread("gpupool-trace", keep_up).detach();  // never ends
    } catch (const std::system_error& error) {
        return Error{ErrorCode::limit_exceeded, std::string("no trace: cannot start its thread: ") + error.what()};
    }
    session.observe(s.wire.get());
    return {};
}

// The calling thread's track.
Track track(State& s) {
    if (own_track == 0) {
        own_track = static_cast<std::uint32_t>(::gettid());
        std::array<char, 16> name{};
        (void)pthread_getname_np(pthread_self(), name.data(), name.size());
        s.timeline->name_track({Actor::program, own_track}, name.data());
    }
    return {Actor::program, own_track};
}

}  // namespace

std::uint64_t now_ns() noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
}

Status start(const Config& config, Session& session) {
    State& s = state();
    const bool lines = config.trace_file == kStandardErrorName;
    Status started;
    {
        const Lock lock(s.mutex);
        started = open(config.summary_file, s.summary);
        s.lines = lines ? stderr : nullptr;
    }
    if (!config.trace_file.empty() && !lines) {
        const Status timeline = start_timeline(config, session);
        if (!timeline) {
            s.server.reset();
            s.wire.reset();
            s.timeline.reset();
            started = started ? timeline
                              : Error{started.error().code, started.error().message + "; " + timeline.error().message};
        }
    }
    if (s.timeline != nullptr || s.summary != nullptr) {
        std::atexit(finish);
    }
    enabled = s.timeline != nullptr || s.summary != nullptr || lines;
    return started;
}

void follow_server(const ServerTrace::Calls& calls) noexcept {
    State& s = state();
    if (s.timeline == nullptr) {
        return;
    }
    std::call_once(s.following, [&] {
        // Do not count this as part of the call during which it happens.
        const OfThread before = mine;
        mine.depth = 0;
        try {
            s.followed = s.server->start(calls);
        } catch (const std::exception& exception) {
            log::warn("the trace lacks the server's part: {}", exception.what());
        }
        mine = before;
    });
}

void after_fork_in_child() noexcept {
    enabled = false;
    mine = {};
    own_track = 0;
    (void)state();
    new (storage) State;
}

bool take_records(std::span<std::byte> body) {
    State& s = state();
    return on() && s.server != nullptr && s.server->take_records(body);
}

bool take_name(std::span<std::byte> body) {
    State& s = state();
    return on() && s.server != nullptr && s.server->take_name(body);
}

void detail::add_bytes_sent(std::uint64_t bytes) noexcept {
    mine.bytes_sent += bytes;
}

void detail::add_bytes_received(std::uint64_t bytes) noexcept {
    mine.bytes_received += bytes;
}

namespace {

const char* name_of(For what) {
    switch (what) {
        case For::reply: return "waits for its reply";
        case For::data: return "waits until its data is sent";
        case For::pull: return "waits until its data is asked for and sent";
        case For::room: break;
    }
    return "waits for room";
}

}  // namespace

void detail::add_wait(std::uint64_t begin_ns, For what) noexcept {
    const std::uint64_t end_ns = now_ns();
    mine.waited_ns += end_ns - begin_ns;
    mine.round_trips += what == For::reply || what == For::pull ? 1 : 0;
    State& s = state();
    if (s.timeline != nullptr && mine.depth != 0 && end_ns - begin_ns >= kShownWaitNs) {
        s.timeline->slice(track(s), "wait", name_of(what), begin_ns, end_ns, {});
    }
}

void note_command(std::uint64_t number, std::uint64_t begin_ns) noexcept {
    State& s = state();
    if (s.timeline != nullptr && mine.depth != 0) {
        s.timeline->flow(track(s), Flow::begins, begin_ns, number);
    }
}

void Call::begin() noexcept {
    if (mine.depth++ != 0) {
        return;
    }
    active_ = true;
    mine = {};
    mine.depth = 1;
    begin_ns_ = now_ns();
}

void Call::finish(CUresult result) noexcept {
    const std::uint64_t end_ns = now_ns();
    mine.depth = 0;
    State& s = state();
    if (s.timeline != nullptr) {
        s.timeline->slice(track(s), "call", calls::name_of(opcode_), begin_ns_, end_ns,
                          fmt::format("\"result\":{},\"waited_us\":{:.3f},\"round_trips\":{},\"bytes_sent\":{},"
                                      "\"bytes_received\":{}",
                                      static_cast<int>(result), microseconds(mine.waited_ns), mine.round_trips,
                                      mine.bytes_sent, mine.bytes_received));
    }
    if (s.summary == nullptr && s.lines == nullptr) {
        return;
    }
    const Lock lock(s.mutex);
    Line& line = s.sums[opcode_];
    ++line.calls;
    line.failures += result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ? 0 : 1;
    line.time_ns += end_ns - begin_ns_;
    line.waited_ns += mine.waited_ns;
    line.round_trips += mine.round_trips;
    line.bytes_sent += mine.bytes_sent;
    line.bytes_received += mine.bytes_received;
    if (s.lines != nullptr) {
        write(s.lines, fmt::format("{:.1f} {} -> {} {:.2f} us, waited {:.2f} us, {} bytes sent, {} received\n",
                                   microseconds(begin_ns_ - s.start_ns), calls::name_of(opcode_),
                                   static_cast<int>(result), microseconds(end_ns - begin_ns_),
                                   microseconds(mine.waited_ns), mine.bytes_sent, mine.bytes_received));
    }
}

}  // namespace gpupool::client::trace
