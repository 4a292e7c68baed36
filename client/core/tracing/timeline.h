// A timeline that Perfetto (ui.perfetto.dev) opens: Chrome's trace events as a JSON array, one event a line. The file
// is written while the program runs and its array is never closed, so that it can be read after a crash. Several
// processes may write to one file; each has tracks of its own.
//
// Limits: at most `max_events` events of this process, further ones are only counted; kBufferBytes of memory. The
// buffer is written when it is full and at every flush().
// Ownership: owns the file.
// Threads: any.
// Errors: if the file cannot be written, the timeline ends with a line in the log; the program does not notice.
// Units: nanoseconds of the steady clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::client {

// The actor whose work a track shows; a "process" in the timeline.
enum class Actor : std::uint32_t { program = 0, wire = 1, worker = 2, gpu = 3 };

struct Track {
    Actor actor;
    std::uint32_t number;  // for Actor::program: the thread's id
};

// Connects events that belong to the same command.
enum class Flow : char { begins = 's', passes = 't', ends = 'f' };

class Timeline {
  public:
    static constexpr std::size_t kBufferBytes = 64u << 10;

    // Opens a file for appending. Error if it exists and is not a timeline.
    static Result<UniqueFd> open(const std::string& path);
    Timeline(UniqueFd file, std::uint64_t max_events);

    void name_actor(Actor actor, std::string_view name);
    void name_track(Track track, std::string_view name);
    // `arguments` is the inside of a JSON object, or empty.
    void slice(Track track, std::string_view category, std::string_view name, std::uint64_t begin_ns,
               std::uint64_t end_ns, std::string_view arguments);
    // Attaches to the slice of that track and time.
    void flow(Track track, Flow flow, std::uint64_t at_ns, std::uint64_t command);

    void flush();
    // Notes what is missing. From then on every event is written at once.
    void finish(std::uint64_t now_ns, std::string_view missing_elsewhere);
    [[nodiscard]] std::uint64_t dropped() const;

    // Escapes text for a JSON string.
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
