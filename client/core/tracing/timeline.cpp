#include "client/core/tracing/timeline.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/files.h"
#include "common/log.h"

namespace gpupool::client {
namespace {

// The format counts in microseconds, with nanoseconds as decimals.
std::string microseconds(std::uint64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

Status write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(file, text.data(), text.size());
        if (written < 0 && errno != EINTR) {
            return system_error("writing the trace", errno);
        }
        text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    }
    return {};
}

// Prepares the file for appending events: begins an empty file, reopens a closed array.
Status prepare(int file, const std::string& path) {
    struct stat info {};
    if (::fstat(file, &info) != 0) {
        return system_error("reading " + path, errno);
    }
    if (!S_ISREG(info.st_mode) || info.st_size == 0) {
        return write_all(file, "[\n");
    }
    if (read_part(path, 0, 1) != "[") {  // the descriptor is write-only
        return Error{ErrorCode::invalid_input, path + " is not a trace: name another file"};
    }
    if (info.st_size > 3 && read_part(path, static_cast<std::uint64_t>(info.st_size) - 3, 3) == "\n]\n") {
        const bool empty = info.st_size == 4;  // "[\n]\n"
        if (::ftruncate(file, info.st_size - (empty ? 2 : 3)) != 0) {
            return system_error("continuing " + path, errno);
        }
        if (!empty) {
            return write_all(file, ",\n");
        }
    }
    return {};
}

}  // namespace

Result<UniqueFd> Timeline::open(const std::string& path) {
    auto file = open_to_append(path, 0666);
    if (!file) {
        return file.error();
    }
    // Another process may be preparing the same file.
    (void)::flock(file->get(), LOCK_EX);
    const Status prepared = prepare(file->get(), path);
    (void)::flock(file->get(), LOCK_UN);
    if (!prepared) {
        return prepared.error();
    }
    return file;
}

Timeline::Timeline(UniqueFd file, std::uint64_t max_events)
    : file_(std::move(file)), max_events_(max_events), process_(static_cast<std::uint32_t>(::getpid())) {
    buffer_.reserve(kBufferBytes);
}

// Linux process ids are below 2^22.
std::uint64_t Timeline::id_of(Actor actor) const {
    return (static_cast<std::uint64_t>(actor) << 24) | process_;
}

std::string Timeline::escape(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else {
            out += c < ' ' || c > '~' ? '?' : c;  // a peer may send anything
        }
    }
    return out;
}

void Timeline::name_actor(Actor actor, std::string_view name) {
    const Lock lock(mutex_);
    append(fmt::format(
        "{{\"ph\":\"M\",\"pid\":{0},\"tid\":0,\"name\":\"process_name\",\"args\":{{\"name\":\"{1}\"}}}},\n"
        "{{\"ph\":\"M\",\"pid\":{0},\"tid\":0,\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{2}}}}},\n",
        id_of(actor), escape(name), static_cast<std::uint32_t>(actor)));
}

void Timeline::name_track(Track track, std::string_view name) {
    const Lock lock(mutex_);
    if (room()) {
        append(fmt::format(
            "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}},\n",
            id_of(track.actor), track.number, escape(name)));
    }
}

void Timeline::slice(Track track, std::string_view category, std::string_view name, std::uint64_t begin_ns,
                     std::uint64_t end_ns, std::string_view arguments) {
    const Lock lock(mutex_);
    if (room()) {
        append(
            fmt::format("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"cat\":\"{}\",\"name\":\"{}\","
                        "\"args\":{{{}}}}},\n",
                        id_of(track.actor), track.number, microseconds(begin_ns),
                        microseconds(std::max(end_ns, begin_ns) - begin_ns), category, name, arguments));
    }
}

void Timeline::flow(Track track, Flow flow, std::uint64_t at_ns, std::uint64_t command) {
    const Lock lock(mutex_);
    if (room()) {
        append(
            fmt::format("{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"cat\":\"flow\",\"name\":\"command\","
                        "\"id\":\"{:#x}\",\"bp\":\"e\"}},\n",
                        static_cast<char>(flow), id_of(track.actor), track.number, microseconds(at_ns),
                        (static_cast<std::uint64_t>(process_) << 40) | (command & ((1ull << 40) - 1))));
    }
}

bool Timeline::room() {
    if (file_.get() < 0) {
        return false;
    }
    if (events_ >= max_events_) {
        ++dropped_;
        return false;
    }
    ++events_;
    return true;
}

void Timeline::append(std::string_view text) {
    if (buffer_.size() + text.size() > kBufferBytes) {
        flush_locked();
    }
    buffer_ += text;
    if (finished_) {
        flush_locked();
    }
}

void Timeline::flush() {
    const Lock lock(mutex_);
    flush_locked();
}

// One write call for whole lines, so that lines of several processes do not mix.
void Timeline::flush_locked() {
    if (file_.get() >= 0 && !buffer_.empty()) {
        if (const Status written = write_all(file_.get(), buffer_); !written) {
            log::warn("{}; the trace ends here", written.error().message);
            file_.reset();
        }
    }
    buffer_.clear();
}

void Timeline::finish(std::uint64_t now_ns, std::string_view missing_elsewhere) {
    const Lock lock(mutex_);
    if (dropped_ != 0 || !missing_elsewhere.empty()) {
        append(fmt::format(
            "{{\"ph\":\"i\",\"s\":\"g\",\"pid\":{},\"tid\":{},\"ts\":{},\"cat\":\"trace\",\"name\":"
            "\"incomplete: {} events beyond the limit of {} omitted{}\"}},\n",
            id_of(Actor::program), process_, microseconds(now_ns), dropped_, max_events_, escape(missing_elsewhere)));
    }
    finished_ = true;
    flush_locked();
}

std::uint64_t Timeline::dropped() const {
    const Lock lock(mutex_);
    return dropped_;
}

}  // namespace gpupool::client
