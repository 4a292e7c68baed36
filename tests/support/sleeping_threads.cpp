#include "tests/support/sleeping_threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace gpupool::test {
namespace {

std::string read_file(const std::string& path) {
    std::string text(4096, '\0');
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = file < 0 ? 0 : ::read(file, text.data(), text.size());
    if (file >= 0) {
        ::close(file);
    }
    text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return text;
}

std::string field(const std::string& text, const char* name) {
    const std::size_t at = text.find(name);
    if (at == std::string::npos) {
        return "";
    }
    const std::size_t begin = at + std::strlen(name);
    return text.substr(begin, text.find('\n', begin) - begin);
}

// How often the thread gave up its processor, if it sleeps now; empty if it does not sleep. See proc(5).
std::string switches_if_asleep(const std::string& thread) {
    const std::string status = read_file("/proc/self/task/" + thread + "/status");
    if (field(status, "\nState:\t").substr(0, 1) != "S") {
        return "";
    }
    return field(status, "\nvoluntary_ctxt_switches:") + field(status, "\nnonvoluntary_ctxt_switches:");
}

// All other threads, with switches_if_asleep() of each.
std::map<std::string, std::string> other_threads() {
    std::map<std::string, std::string> threads;
    DIR* const listing = ::opendir("/proc/self/task");
    while (const dirent* const entry = listing == nullptr ? nullptr : ::readdir(listing)) {
        const std::string name = entry->d_name;
        if (name[0] != '.' && name != std::to_string(::gettid())) {
            threads[name] = switches_if_asleep(name);
        }
    }
    if (listing != nullptr) {
        ::closedir(listing);
    }
    return threads;
}

template <class Condition>
bool wait_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kSleepLimit;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

}  // namespace

bool wait_until_others_sleep() {
    // Twice the same: otherwise a thread might wake one that was seen asleep, and then be seen asleep itself.
    std::map<std::string, std::string> before;
    return wait_until([&] {
        std::map<std::string, std::string> now = other_threads();
        bool asleep = now == before;
        for (const auto& [thread, switches] : now) {
            asleep = asleep && !switches.empty();
        }
        before = std::move(now);
        return asleep;
    });
}

BlockingThread::BlockingThread(std::function<void()> body)
    : thread_([this, body = std::move(body)] {
          id_ = ::gettid();
          body();
          returned_ = true;
      }) {}

bool BlockingThread::blocks() const {
    return wait_until(
               [&] { return returned_ || (id_ != 0 && !switches_if_asleep(std::to_string(id_.load())).empty()); }) &&
           !returned_;
}

}  // namespace gpupool::test
