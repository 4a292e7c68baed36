// A timeline that Perfetto (ui.perfetto.dev) opens: Chrome's trace events as JSON, an array of one event a line, which
// is written as the program runs and never closed, so that what a crash leaves can be read. Several processes may write
// to one file; each has its own tracks.
//
// Limits: at most `max_events` events of this process, the others are counted; kBufferBytes of memory. What is in the
//   buffer goes to the file when it is full and whenever flush() is called.
// Ownership: owns the file. Threads: any. Units: nanoseconds of the steady clock. Errors: a file that cannot be written
//   ends the timeline, with a line in the log; nothing reaches the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::client {

// Who does what a track shows: what the timeline calls a process.
enum class Actor : std::uint32_t { program = 0, wire = 1, worker = 2, gpu = 3 };

struct Track {
    Actor actor;
    std::uint32_t number;  // of the program's tracks: the thread's id
};

// How an event hangs together with others: what a command goes through.
enum class Flow : char { begins = 's', passes = 't', ends = 'f' };

class Timeline {
  public:
    static constexpr std::size_t kBufferBytes = 64u << 10;

    // The file is appended to. One that is no timeline is left alone.
    static Result<UniqueFd> open(const std::string& path);
    Timeline(UniqueFd file, std::uint64_t max_events);

    void name_actor(Actor actor, std::string_view name);
    void name_track(Track track, std::string_view name);
    // `arguments` is the inside of a JSON object, or empty.
    void slice(Track track, std::string_view category, std::string_view name, std::uint64_t begin_ns,
               std::uint64_t end_ns, std::string_view arguments);
    // Within the slice of that track and time.
    void flow(Track track, Flow flow, std::uint64_t at_ns, std::uint64_t command);

    void flush();
    // Says what is missing, and from here on writes every event at once.
    void finish(std::uint64_t now_ns, std::string_view missing_elsewhere);
    [[nodiscard]] std::uint64_t dropped() const;

    // As the inside of a JSON string.
    static std::string escape(std::string_view text);

  private:
    bool room() GP_REQUIRES(mutex_);
    void append(std::string_view text) GP_REQUIRES(mutex_);
    void flush_locked() GP_REQUIRES(mutex_);
    [[nodiscard]] std::uint64_t id_of(Actor actor) const;

    mutable Mutex mutex_;
    UniqueFd file_ GP_GUARDED_BY(mutex_);
    const std::uint64_t max_events_;
    const std::uint32_t process_;
    std::uint64_t events_ GP_GUARDED_BY(mutex_) = 0, dropped_ GP_GUARDED_BY(mutex_) = 0;
    std::string buffer_ GP_GUARDED_BY(mutex_);
    bool finished_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
