#include "client/core/trace.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "client/core/image_counts.h"
#include "common/files.h"
#include "protocol/calls/table.h"

namespace gpupool::client::trace {
namespace {

using Clock = std::chrono::steady_clock;

struct OfThread {
    int depth = 0;  // calls made inside a call count as the outer one's
    std::uint64_t bytes_sent = 0, bytes_received = 0, round_trips = 0;
    std::chrono::nanoseconds waited{0};
};
thread_local OfThread mine;

struct Line {
    std::uint64_t calls = 0, failures = 0, bytes_sent = 0, bytes_received = 0, round_trips = 0;
    std::chrono::nanoseconds time{0}, waited{0};

    void add(const Line& other) {
        calls += other.calls;
        failures += other.failures;
        bytes_sent += other.bytes_sent;
        bytes_received += other.bytes_received;
        round_trips += other.round_trips;
        time += other.time;
        waited += other.waited;
    }
};

struct State {
    std::mutex mutex;
    std::FILE* trace = nullptr;
    std::FILE* summary = nullptr;
    std::map<std::uint16_t, Line> lines;
    Clock::time_point start = Clock::now();
};
State& state() {
    static auto& instance = *new State;
    return instance;
}

double microseconds(std::chrono::nanoseconds time) {
    return static_cast<double>(time.count()) / 1000.0;
}

// A full disk must not end the program, as an exception would.
void write(std::FILE* file, const std::string& line) {
    std::fwrite(line.data(), 1, line.size(), file);
}

void write_summary() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.summary == nullptr) {
        return;
    }
    write(s.summary, fmt::format("{:<48} {:>10} {:>8} {:>12} {:>12} {:>12} {:>14} {:>14}\n", "call", "calls", "failed",
                                 "us", "us waited", "round trips", "bytes sent", "bytes received"));
    const auto print = [&](std::string_view name, const Line& line) {
        write(s.summary, fmt::format("{:<48} {:>10} {:>8} {:>12.1f} {:>12.1f} {:>12} {:>14} {:>14}\n", name, line.calls,
                                     line.failures, microseconds(line.time), microseconds(line.waited),
                                     line.round_trips, line.bytes_sent, line.bytes_received));
    };
    Line total;
    for (const auto& [opcode, line] : s.lines) {
        print(calls::name_of(opcode), line);
        total.add(line);
    }
    print("(all)", total);
    write(s.summary, image_counts().summary());
    std::fflush(s.summary);
}

Status open(const std::string& name, std::FILE*& file) {
    if (name.empty()) {
        return {};
    }
    if (name == "-") {
        file = stderr;
        return {};
    }
    auto opened = open_to_append(name, 0666);
    if (!opened) {
        return opened.error().within("the trace");
    }
    file = ::fdopen(opened->get(), "a");
    if (file == nullptr) {
        return system_error("opening " + name, errno);
    }
    static_cast<void>(opened->release());  // the stream's now
    return {};
}

}  // namespace

Status start(const std::string& trace_file, const std::string& summary_file) {
    State& s = state();
    {
        const std::lock_guard lock(s.mutex);
        GPUPOOL_TRY(open(trace_file, s.trace));
        if (s.trace != nullptr) {
            std::setvbuf(s.trace, nullptr, _IOLBF, 0);  // the last calls before a crash or _exit are those that matter
        }
        GPUPOOL_TRY(open(summary_file, s.summary));
    }
    if (s.summary != nullptr) {
        std::atexit(write_summary);
    }
    enabled = s.trace != nullptr || s.summary != nullptr;
    return {};
}

void add_bytes_sent(std::uint64_t bytes) noexcept {
    mine.bytes_sent += bytes;
}

void add_bytes_received(std::uint64_t bytes) noexcept {
    mine.bytes_received += bytes;
}

void add_round_trip(std::chrono::nanoseconds waited) noexcept {
    ++mine.round_trips;
    mine.waited += waited;
}

void add_wait(std::chrono::nanoseconds waited) noexcept {
    mine.waited += waited;
}

void Call::begin() noexcept {
    if (mine.depth++ != 0) {
        return;
    }
    active_ = true;
    mine = {};
    mine.depth = 1;
    start_ = Clock::now();
}

void Call::finish(CUresult result) noexcept {
    const auto now = Clock::now();
    mine.depth = 0;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Line& line = s.lines[opcode_];
    ++line.calls;
    line.failures += result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ? 0 : 1;
    line.time += now - start_;
    line.waited += mine.waited;
    line.round_trips += mine.round_trips;
    line.bytes_sent += mine.bytes_sent;
    line.bytes_received += mine.bytes_received;
    if (s.trace != nullptr) {
        write(s.trace,
              fmt::format("{:.1f} {} -> {} {:.2f} us, waited {:.2f} us, {} bytes sent, {} received\n",
                          microseconds(start_ - s.start), calls::name_of(opcode_), static_cast<int>(result),
                          microseconds(now - start_), microseconds(mine.waited), mine.bytes_sent, mine.bytes_received));
    }
}

}  // namespace gpupool::client::trace
