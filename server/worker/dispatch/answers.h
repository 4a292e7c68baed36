// What the session sends to its client: replies, notices, bulk data, and what must precede them. Keeps the order in
// which the client may rely on them.
//
// Threads: the dispatcher's alone. The threads of the channel and of the lanes send.
// Errors: a connection that fails ends the session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/codec/agreement.h"
#include "protocol/codec/record.h"
#include "protocol/wire/channel.h"
#include "protocol/wire/lanes.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/session/objects.h"
#include "server/worker/session/output.h"
#include "server/worker/session/session_end.h"

namespace gpupool::worker {

class HostMirrors;
class Scheduler;

class Answers {
  public:
    // What kernels print, and what the driver says on standard error; null: none.
    struct Output {
        DeviceOutput* kernels = nullptr;
        DeviceOutput* driver = nullptr;
    };

    // All of them outlive this.
    Answers(codec::Agreement agreement, Output output, Objects& objects, const Scheduler& scheduler,
            HostMirrors& host_mirrors, SessionEnd& end)
        : agreement_(std::move(agreement)),
          output_(output),
          objects_(objects),
          scheduler_(scheduler),
          host_mirrors_(host_mirrors),
          end_(end) {}

    // Call before anything is sent. Both outlive this.
    void open(wire::Channel& channel, wire::Lanes& lanes) {
        channel_ = &channel;
        lanes_ = &lanes;
    }

    // Answers a command without outputs: replies if the command wants a reply, else latches an error. `synchronizes`:
    // the call reports latched errors, and output of kernels goes before the reply.
    void give(const Command& command, CUresult result, bool synchronizes = false);
    // The same with `body_bytes` of outputs, which `write` writes.
    void give(const Command& command, CUresult result, bool synchronizes, std::size_t body_bytes,
              const std::function<void(std::byte*)>& write);

    template <HasMembers Notice>
    void notify(codec::NoticeType type, const Notice& notice) {
        notify_bytes(type, &notice, sizeof notice);
    }
    void notify_bytes(codec::NoticeType type, const void* notice, std::size_t bytes);
    // Has anything been notified since the last call? The channel may still hold it back.
    bool take_notified() { return std::exchange(notified_, false); }
    void notify_text(codec::NoticeType type, std::string_view text);

    // Sends data of a transfer that the client began, over a lane or the session's own connection. The data must stay
    // in place until `done` is called, which any thread may do.
    void send_bulk(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                   std::function<void()> done);
    // The same for a transfer that the worker began, always over the session's own connection.
    void send_own(std::uint64_t transfer, std::uint64_t offset, std::span<const std::byte> data,
                  std::function<void()> done);
    // Must be called before the client is notified of a completion or of an error: sends what the GPU wrote to mapped
    // host memory and what kernels printed until then.
    void send_what_precedes(CUresult result);
    void send_host_changes();
    void send_host_change(std::span<const std::byte> record) {
        notify_bytes(codec::NoticeType::host_memory, record.data(), record.size());
    }

    // The client broke the protocol with this command: ends the session.
    void violation(const Command& command, const std::string& what);

    [[nodiscard]] const codec::Agreement& agreement() const { return agreement_; }

  private:
    ContextState* context_of(const Command& command) {
        return objects_.context(codec::from_wire<CUcontext>(command.header.context));
    }
    // The context whose work the command concerns: that of its stream, or the one that it waits for, or that of the
    // sending thread.
    ContextState* concerned_context(const Command& command);
    void latch(const Command& command, CUresult result);
    CUresult take_latched(const Command& command);
    // Sends the number of the last piece sent over lanes. Must precede anything that the client must not act on until
    // that data has landed.
    void announce_pieces();
    void send_output(DeviceOutput* output, codec::NoticeType type, bool thorough);

    const codec::Agreement agreement_;  // with the client, on calls and notices
    const Output output_;
    Objects& objects_;
    const Scheduler& scheduler_;
    HostMirrors& host_mirrors_;
    SessionEnd& end_;
    wire::Channel* channel_ = nullptr;
    wire::Lanes* lanes_ = nullptr;
    std::uint64_t announced_pieces_ = 0;
    bool notified_ = false;
};

}  // namespace gpupool::worker
