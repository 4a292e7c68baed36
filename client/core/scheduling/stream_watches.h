// Streams that the program queries (cuStreamQuery) again and again while they are busy. After kAnswersBefore answers
// the worker watches such a stream and reports its completion (NoticeType::stream_complete), so that a query needs no
// round trip. It does not do so at once: short work is known to be complete sooner from the reply to a query.
//
// Ownership: keys only.
// Threads: any; note_complete() only the receiving thread.
// Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "client/core/scheduling/captures.h"
#include "common/mutex.h"

namespace gpupool::client {

class StreamWatches {
  public:
    // What the client knows without a round trip.
    enum class Known { complete, pending, unknown };

    // `sent`: the number of the session's last command. `received`: how many records have arrived
    // (Session::records_received). Pending holds until the next record arrives, which may mean that the stream is
    // complete. Complete holds until the next command is sent.
    [[nodiscard]] Known known(const StreamKey& stream, std::uint64_t sent, std::uint64_t received);
    // The worker has answered a query, and sent nothing else since `received`. True: the caller must ask the worker to
    // watch the stream (gpStreamWatch). No other caller gets true until note_complete().
    [[nodiscard]] bool answered(const StreamKey& stream, bool complete, std::uint64_t received);
    // The worker's notice. True: the work of all commands before `command` is complete. False: an error, which only the
    // worker can report.
    void note_complete(const StreamKey& stream, std::uint64_t command, bool complete);
    void forget(const StreamKey& stream);

  private:
    static constexpr unsigned kAnswersBefore = 3;  // consecutive "busy" answers before the stream is watched
    struct Watch {
        unsigned answers = 0;
        std::uint64_t received = 0;        // at the worker's last answer
        std::uint64_t complete_until = 0;  // complete up to this command
        [[nodiscard]] bool under_way() const { return answers == kAnswersBefore; }
    };

    Mutex mutex_;
    std::map<StreamKey, Watch> watches_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
