// The streams that the program asks about (cuStreamQuery) again and again while they are busy: after some answers the
// worker says by itself when one is not any more (NoticeType::stream_complete), so that asking needs no round trip. Not
// before: what is done soon is known sooner from the answer to a question.
//
// Threads: any; note_complete() the receiving thread's. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "client/core/captures.h"

namespace gpupool::client {

class StreamWatches {
  public:
    // What a query finds without asking: nothing is left to do, something is, or that it has to ask.
    enum class Known { complete, pending, unknown };

    // `sent`: the session's last command; a stream that was complete is known to be no longer than until the next one.
    // `received`: how often the worker has said anything (Session::records_received); what it says may mean that a
    // stream is complete, so that one which was not is known not to be no longer than until then.
    [[nodiscard]] Known known(const StreamKey& stream, std::uint64_t sent, std::uint64_t received);
    // The worker has answered whether it is complete, and has said nothing else since `received`. True: the caller is
    // to ask it to tell, and says which command did.
    [[nodiscard]] bool answered(const StreamKey& stream, bool complete, std::uint64_t received);
    void asked(const StreamKey& stream, std::uint64_t command);
    // The worker tells: everything that came before that command is complete, or (false) only it can say why not.
    void note_complete(const StreamKey& stream, bool complete);
    void forget(const StreamKey& stream);

  private:
    static constexpr unsigned kAnswersBefore = 3;  // that it is busy, one after the other
    struct Watch {
        unsigned answers = 0;
        std::uint64_t received = 0;  // as of the worker's last answer
        std::uint64_t command = 0;   // that asked; 0: it is on its way
        bool told = false;
    };

    std::mutex mutex_;
    std::map<StreamKey, Watch> watches_;
};

}  // namespace gpupool::client
