// The streams that the program asks about (cuStreamQuery) again and again while they are busy: after some answers the
// worker says by itself when one is not any more (NoticeType::stream_complete), so that asking needs no round trip. Not
// before: what is done soon is known sooner from the answer to a question.
//
// Threads: any; note_complete() the receiving thread's. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "client/core/scheduling/captures.h"
#include "common/mutex.h"

namespace gpupool::client {

class StreamWatches {
  public:
    // What a query finds without asking: nothing is left to do, something is, or that it has to ask.
    enum class Known { complete, pending, unknown };

    // `sent`: the session's last command, `received`: how often the worker has said anything
    // (Session::records_received). Pending holds until any record comes, which may mean that the stream is complete;
    // complete until any command is sent.
    [[nodiscard]] Known known(const StreamKey& stream, std::uint64_t sent, std::uint64_t received);
    // The worker has answered whether it is complete, and said nothing else since `received`. True: the caller is to
    // ask it to tell (gpStreamWatch); nobody else is until note_complete().
    [[nodiscard]] bool answered(const StreamKey& stream, bool complete, std::uint64_t received);
    // The worker tells: everything that came before that command is complete, or (false) only it can say why not.
    void note_complete(const StreamKey& stream, std::uint64_t command, bool complete);
    void forget(const StreamKey& stream);

  private:
    static constexpr unsigned kAnswersBefore = 3;  // that it is busy, one after the other
    struct Watch {
        unsigned answers = 0;
        std::uint64_t received = 0;        // as of the worker's last answer
        std::uint64_t complete_until = 0;  // the command
        [[nodiscard]] bool under_way() const { return answers == kAnswersBefore; }
    };

    Mutex mutex_;
    std::map<StreamKey, Watch> watches_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
