// One end of a supervision socket between daemon and worker. It carries whole messages with a length prefix, each with
// up to `kMaxDescriptors` descriptors.
//
// The socket is a Unix stream. A message is a UInt32 (length in bytes, little endian; the top byte is the number of
// descriptors) and that many bytes of a Cap'n Proto message (protocol/schema/supervision.capnp). Its descriptors travel
// together with its first byte. Both ends poll: receive() never blocks. send() of a worker blocks for at most
// `kSendTimeout`, since the daemon always reads; send() of the daemon never blocks: a worker that does not read loses
// its socket.
//
// Ownership: the socket owns its descriptor; a received message owns its bytes and its descriptors.
// Threads: one at a time.
// Errors: `closed` if the other end is gone, `invalid_input` and `limit_exceeded` for malformed messages, `timed_out`
//   if the other end does not read, `system`. After an error in send() every other send() fails: a message may have
//   been cut.
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
inline constexpr std::size_t kMaxDescriptors = 7;  // per message: a connection's, two folders and an account
inline constexpr std::chrono::milliseconds kSendTimeout{2000};

struct Message {
    kj::Array<capnp::word> words;
    std::vector<UniqueFd> descriptors;

    [[nodiscard]] std::size_t bytes() const { return words.size() * sizeof(capnp::word); }
};

// Options for reading a message from a peer. At most eight times its size is read, since a hostile message may contain
// pointer cycles.
capnp::ReaderOptions bounded_reader(std::size_t bytes);

class MessageSocket {
  public:
    MessageSocket() = default;
    explicit MessageSocket(UniqueFd socket, std::chrono::milliseconds send_timeout = kSendTimeout);

    // Sends one message with `descriptors` (at most kMaxDescriptors, not closed here).
    Status send(capnp::MessageBuilder& message, std::span<const int> descriptors = {});

    // Returns all complete messages that have arrived, without blocking; empty if there is none. Messages received
    // before the end of the stream are returned first, `closed` on the next call.
    Result<std::vector<Message>> receive();

    [[nodiscard]] int descriptor() const { return socket_.get(); }
    [[nodiscard]] bool open() const { return socket_.get() >= 0; }
    void close();

  private:
    Status send_bytes(std::span<const char> bytes, std::span<const int> descriptors);
    // Does one recvmsg into `pending_`. Returns false if there is nothing to read.
    Result<bool> read_some();
    Status take_whole_messages(std::vector<Message>& out);

    UniqueFd socket_;
    std::vector<std::byte> pending_;
    // Received with bytes that are still in `pending_`. The first message with descriptors takes the first group: the
    // kernel never merges the descriptors of two sends.
    std::vector<std::vector<UniqueFd>> descriptors_;
    bool ended_ = false;
    std::chrono::milliseconds send_timeout_ = kSendTimeout;
    bool broken_ = false;  // send() has failed
};

// Creates two connected sockets, both close-on-exec and non-blocking.
Status make_socket_pair(UniqueFd& first, UniqueFd& second);

}  // namespace gpupool::supervision
