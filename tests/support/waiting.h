// Waiting for a state that no event reports, and seeing that a thread waits.
//
// A test that needs a thread to wait before it goes on asks here instead of sleeping for a while: the kernel knows
// whether the thread sleeps. Header-only, for programs that link against nothing of gpupool.
//
// Threads: any. Errors: every function that waits returns false on its timeout.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace gpupool::test {

constexpr std::chrono::seconds kLongWait{60};

// Polls until `holds`, after 0.1 ms at first and every 10 ms in the end.
template <class Condition>
bool eventually(const Condition& holds, std::chrono::milliseconds timeout = kLongWait) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::chrono::microseconds pause{100};
    while (!holds()) {
        if (std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(pause);
        pause = std::min<std::chrono::microseconds>(2 * pause, std::chrono::milliseconds(10));
    }
    return true;
}

// What the kernel says about a thread.
struct ThreadState {
    char state = 0;        // as in /proc: R, S, D, T, Z; 0 when there is no such thread
    std::string switches;  // how often the thread gave up or lost its processor

    bool operator==(const ThreadState&) const = default;
};

inline ThreadState state_of_thread(pid_t process, pid_t thread) {
    std::ifstream status("/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/status");
    ThreadState found;
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("State:")) {
            found.state = line[line.find_first_not_of(" \t", 6)];
        } else if (line.find("ctxt_switches:") != std::string::npos) {
            found.switches += line;
        }
    }
    return found;
}

// Whether the threads have slept in the kernel for `stays` without having run. A thread that polls with short sleeps
// does not count as blocked.
inline bool are_blocked(pid_t process, const std::vector<pid_t>& threads, std::chrono::milliseconds stays) {
    std::vector<std::string> switches;
    for (const pid_t thread : threads) {
        const ThreadState before = state_of_thread(process, thread);
        if (before.state != 'S') {
            return false;
        }
        switches.push_back(before.switches);
    }
    std::this_thread::sleep_for(stays);
    return std::equal(threads.begin(), threads.end(), switches.begin(), [&](pid_t thread, const std::string& before) {
        const ThreadState after = state_of_thread(process, thread);
        return after.state == 'S' && after.switches == before;
    });
}

inline bool is_blocked(pid_t process, pid_t thread, std::chrono::milliseconds stays = std::chrono::milliseconds(10)) {
    return are_blocked(process, {thread}, stays);
}

inline std::vector<pid_t> threads_of(pid_t process) {
    std::vector<pid_t> found;
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", gone)) {
        found.push_back(static_cast<pid_t>(std::stol(task.path().filename())));
    }
    return found;
}

// Waits until every other thread of this process sleeps, so that none is going to do anything until it is woken or its
// timeout ends. Threads that spin or sleep for short times only must have ended.
inline bool wait_until_others_sleep() {
    // Twice the same: otherwise a thread might wake one that was seen asleep, and then be seen asleep itself.
    std::map<pid_t, ThreadState> before;
    return eventually([&] {
        std::map<pid_t, ThreadState> now;
        for (const pid_t thread : threads_of(::getpid())) {
            if (thread != ::gettid()) {
                now[thread] = state_of_thread(::getpid(), thread);
            }
        }
        const bool asleep =
            now == before && std::ranges::all_of(now, [](const auto& entry) { return entry.second.state == 'S'; });
        before = std::move(now);
        return asleep;
    });
}

// The process's threads of that name.
inline std::vector<pid_t> threads_named(const std::string& name, pid_t process = ::getpid()) {
    std::vector<pid_t> found = threads_of(process);
    std::erase_if(found, [&](pid_t thread) {
        std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/comm");
        std::string own;
        return !std::getline(file, own) || own != name;
    });
    return found;
}

// A thread of a test, which can be seen to wait.
class ObservedThread {
  public:
    template <class Work>
    explicit ObservedThread(Work work)
        : thread_([this, work = std::move(work)] {
              id_ = ::gettid();
              work();
              over_ = true;
          }) {}
    ~ObservedThread() {
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    ObservedThread(const ObservedThread&) = delete;

    void join() { thread_.join(); }
    [[nodiscard]] pid_t id() const { return id_; }  // 0 before the thread runs
    [[nodiscard]] bool over() const { return over_; }
    // True once the thread is blocked; false when it ends instead.
    [[nodiscard]] bool blocks(std::chrono::milliseconds stays = std::chrono::milliseconds(10)) const {
        bool blocked = false;
        (void)eventually([&] { return over_ || (blocked = id_ != 0 && is_blocked(::getpid(), id_, stays)); });
        return blocked;
    }

  private:
    std::atomic<pid_t> id_{0};
    std::atomic<bool> over_{false};
    std::thread thread_;  // last: it uses all of the above
};

// Waits until that thread of this process is blocked, for instance inside the call under test.
inline bool wait_until_blocked(pid_t thread, std::chrono::milliseconds timeout = kLongWait,
                               std::chrono::milliseconds stays = std::chrono::milliseconds(10)) {
    return eventually([&] { return is_blocked(::getpid(), thread, stays); }, timeout);
}

}  // namespace gpupool::test
