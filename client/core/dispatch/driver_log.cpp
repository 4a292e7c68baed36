#include "client/core/dispatch/driver_log.h"

#include <fmt/format.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "client/core/dispatch/thread.h"
#include "client/core/session/contexts.h"
#include "client/error_text.h"
#include "common/environment.h"
#include "common/log.h"
#include "common/mutex.h"
#include "protocol/calls/table.h"

namespace gpupool::client::driver_log {
namespace {

constexpr const char* kRolledOver =
    "Log buffer has rolled over since the previous dump. The oldest messages will be missing\n";
constexpr const char* kNoRoom =
    "The provided buffer is not large enough to hold all messages. Some messages will be missing\n";
constexpr std::size_t kMostCallbacks = 100'000;

struct Callback {
    CUlogsCallback function;
    void* data;
    CUlogsCallbackHandle handle;
};

// The text is made when the program reads it: some libraries make a failing call for each of the program's.
struct Entry {
    std::uint16_t opcode = 0;
    CUresult result = CUDA_SUCCESS;
    std::string text = {};  // instead of the call and its result
    std::chrono::system_clock::time_point at = std::chrono::system_clock::now();
    unsigned long thread = static_cast<unsigned long>(pthread_self());

    [[nodiscard]] std::string message() const;
    [[nodiscard]] std::string line() const;
};

struct Log {
    Mutex mutex;
    std::deque<Entry> entries GP_GUARDED_BY(mutex);
    CUlogIterator first GP_GUARDED_BY(mutex) = 0;  // the number of the oldest entry
    std::vector<Callback> callbacks GP_GUARDED_BY(mutex);
    std::uintptr_t next_handle GP_GUARDED_BY(mutex) = 1;
    bool file_is_known GP_GUARDED_BY(mutex) = false;  // CUDA_LOG_FILE was read
    std::FILE* file GP_GUARDED_BY(mutex) = nullptr;
    std::string file_error GP_GUARDED_BY(mutex);

    CUlogIterator end_locked() GP_REQUIRES(mutex) { return first + static_cast<CUlogIterator>(entries.size()); }
    void open_file() GP_REQUIRES(mutex);
    void add(Entry entry) GP_REQUIRES(mutex);
    std::string text_from(std::optional<CUlogIterator> from, std::size_t room, bool& fits) GP_REQUIRES(mutex);
};

// A forked child constructs it anew in place, because a thread that does not exist there may hold the lock.
alignas(Log) std::byte storage[sizeof(Log)];
Log& log() {
    static Log* const instance = new (storage) Log;
    return *instance;
}

std::string Entry::message() const {
    if (!text.empty()) {
        return text;
    }
    const char* const name = error_text::name(result);
    return fmt::format("Returning {} ({}) from {}", static_cast<int>(result), name == nullptr ? "?" : name,
                       calls::name_of(opcode));
}

std::string Entry::line() const {
    const std::time_t seconds = std::chrono::system_clock::to_time_t(at);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch()).count() % 1000;
    std::tm parts{};
    localtime_r(&seconds, &parts);
    return fmt::format("[{:02}:{:02}:{:02}.{:03}][{}][CUDA][E] {}\n", parts.tm_hour, parts.tm_min, parts.tm_sec, ms,
                       thread, message());
}

void Log::open_file() {
    file_is_known = true;
    const std::optional<std::string> path = environment::text("CUDA_LOG_FILE");
    if (!path) {
        return;
    }
    file = *path == "stdout" ? stdout : *path == "stderr" ? stderr : std::fopen(path->c_str(), "ae");
    if (file == nullptr) {
        file_error = fmt::format("Failed to open log file {} due to {}\n", *path, std::strerror(errno));
    }
}

void Log::add(Entry entry) {
    if (!file_is_known) {
        open_file();
    }
    entries.push_back(std::move(entry));
    if (file != nullptr) {
        std::fputs(entries.back().line().c_str(), file);
        std::fflush(file);
    }
    while (entries.size() > kMostEntries) {
        entries.pop_front();
        ++first;
    }
}

// The newest entries that fit, behind a line that says so if some are missing.
std::string Log::text_from(std::optional<CUlogIterator> from, std::size_t room, bool& fits) {
    const CUlogIterator asked = from.value_or(0);
    const std::size_t skipped = asked > first ? std::min<std::size_t>(asked - first, entries.size()) : 0;
    std::string head = asked < first ? kRolledOver : "";
    if (asked == 0) {
        head += file_error;
    }
    std::vector<std::string> lines;
    std::size_t bytes = head.size();
    for (std::size_t i = skipped; i < entries.size(); ++i) {
        lines.push_back(entries[i].line());
        bytes += lines.back().size();
    }
    std::size_t begin = 0;
    if (bytes > room) {
        head = kNoRoom;
        bytes = head.size();
        begin = lines.size();
        while (begin > 0 && bytes + lines[begin - 1].size() <= room) {
            bytes += lines[--begin].size();
        }
    }
    fits = bytes <= room && (begin < lines.size() || lines.empty());
    std::string text = std::move(head);
    for (; begin < lines.size(); ++begin) {
        text += lines[begin];
    }
    return text;
}

// Why a call failed, where the driver's log says more than the error and the client knows.
const char* explanation(std::uint16_t opcode, CUresult result) {
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        const calls::CallInfo* const call = calls::find(opcode);
        return call == nullptr ? nullptr : call->why_refused;
    }
    const ContextState* const context = this_thread().current();
    if (result == CUDA_ERROR_INVALID_CONTEXT && context == nullptr) {
        return "No CUDA context is current to the calling thread";
    }
    if (context != nullptr && result == context->lost.load(std::memory_order_relaxed)) {
        return "Sticky error detected";
    }
    return nullptr;
}

// Appends the entry and calls the callbacks.
void append(const Entry& entry) {
    Log& l = log();
    std::vector<Callback> callbacks;
    {
        const Lock lock(l.mutex);
        l.add(entry);
        callbacks = l.callbacks;
    }
    if (callbacks.empty()) {
        return;
    }
    std::string text = entry.message();
    for (const Callback& callback : callbacks) {
        callback.function(callback.data, CU_LOG_LEVEL_ERROR, text.data(), text.size());
    }
}

}  // namespace

void note_failure(std::uint16_t opcode, CUresult result) noexcept {
    if (result == CUDA_ERROR_NOT_READY || result == CUDA_ERROR_NOT_INITIALIZED) {
        return;
    }
    try {
        if (const char* const why = explanation(opcode, result)) {
            append({.text = why});
        }
        append({.opcode = opcode, .result = result});
    } catch (const std::exception& exception) {
        log::error("the driver log misses an entry: {}", exception.what());
    }
}

CUresult add_callback(CUlogsCallback function, void* data, CUlogsCallbackHandle* handle) {
    if (function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Log& l = log();
    const Lock lock(l.mutex);
    if (l.callbacks.size() >= kMostCallbacks) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    l.callbacks.push_back({function, data, reinterpret_cast<CUlogsCallbackHandle>(l.next_handle++)});
    if (handle != nullptr) {
        *handle = l.callbacks.back().handle;
    }
    return CUDA_SUCCESS;
}

CUresult remove_callback(CUlogsCallbackHandle handle) {
    Log& l = log();
    const Lock lock(l.mutex);
    const std::size_t removed = std::erase_if(l.callbacks, [&](const Callback& one) { return one.handle == handle; });
    return removed != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUlogIterator end() {
    Log& l = log();
    const Lock lock(l.mutex);
    return l.end_locked();
}

CUresult dump(CUlogIterator* from, char* buffer, std::size_t* bytes) {
    if (bytes == nullptr || buffer == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Log& l = log();
    const Lock lock(l.mutex);
    const std::size_t room = *bytes == 0 ? 0 : *bytes - 1;
    bool fits = false;
    const std::string text = l.text_from(from == nullptr ? std::nullopt : std::optional(*from), room, fits);
    *bytes = 0;
    if (!fits) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!text.empty()) {
        std::memcpy(buffer, text.c_str(), text.size() + 1);
        *bytes = text.size();
    }
    if (from != nullptr) {
        *from = l.end_locked();
    }
    return CUDA_SUCCESS;
}

CUresult dump_to_file(CUlogIterator* from, const char* path) {
    if (path == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::FILE* const file = std::fopen(path, "we");
    if (file == nullptr) {
        append({.text = fmt::format("Unable to open file at {} for dumping logs", path)});
        return CUDA_ERROR_INVALID_VALUE;
    }
    Log& l = log();
    std::string text;
    {
        const Lock lock(l.mutex);
        bool fits = false;
        text = l.text_from(from == nullptr ? std::nullopt : std::optional(*from), SIZE_MAX, fits);
        if (from != nullptr) {
            *from = l.end_locked();
        }
    }
    const bool written = std::fputs(text.c_str(), file) >= 0;
    return std::fclose(file) == 0 && written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

void after_fork_in_child() noexcept {
    (void)log();
    new (storage) Log;
}

}  // namespace gpupool::client::driver_log
