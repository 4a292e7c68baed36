// One end of a supervision socket: whole messages, each behind its length, with a few descriptors each.
//
// The socket is a Unix stream. A message is a UInt32 (bytes, little endian; the number of descriptors in the top byte)
// and that many bytes of a Cap'n Proto message (protocol/schema/supervision.capnp); descriptors travel together, with
// the message's first byte. Both ends poll: reading never waits, writing waits for at most `kSendTimeout`, since the
// other end always reads.
//
// Ownership: the socket owns its descriptor; a received message owns its bytes and its descriptors.
// Threads: one at a time.
// Errors: `closed` when the other end is gone, `invalid_input` and `limit_exceeded` for what is no message of ours,
//   `timed_out` when the other end does not take a message, `system`. After an error the socket is of no further use.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::supervision {

inline constexpr std::size_t kMaxMessageBytes = 1u << 20;
inline constexpr std::size_t kMaxDescriptors = 4;  // of one message
inline constexpr std::chrono::milliseconds kSendTimeout{2000};

struct Message {
    kj::Array<capnp::word> words;
    std::vector<UniqueFd> descriptors;

    [[nodiscard]] std::size_t bytes() const { return words.size() * sizeof(capnp::word); }
};

// How a reader of a message is bounded: what a peer wrote may point in circles, so at most eight times its size is
// read.
capnp::ReaderOptions bounded_reader(std::size_t bytes);

class MessageSocket {
  public:
    MessageSocket() = default;
    explicit MessageSocket(UniqueFd socket);

    // Sends one message; `descriptors` (not closed here, at most kMaxDescriptors) go with it.
    Status send(capnp::MessageBuilder& message, std::span<const int> descriptors = {});

    // Everything that has arrived in whole, without waiting; empty when there is no whole message yet. Messages that
    // came before the end of the stream are given out first, `closed` on the next call.
    Result<std::vector<Message>> receive();

    [[nodiscard]] int descriptor() const { return socket_.get(); }
    [[nodiscard]] bool open() const { return socket_.get() >= 0; }
    void close();

  private:
    // One recvmsg into `pending_`; false when nothing is there.
    Result<bool> read_some();
    Status take_whole_messages(std::vector<Message>& out);

    UniqueFd socket_;
    std::vector<std::byte> pending_;
    // Came with bytes that are still in pending_; the first message that has any takes the first group. The kernel
    // never joins what came with different messages.
    std::vector<std::vector<UniqueFd>> descriptors_;
    bool ended_ = false;
};

// Two connected sockets, both close-on-exec and non-blocking.
Status make_socket_pair(UniqueFd& first, UniqueFd& second);

}  // namespace gpupool::supervision
