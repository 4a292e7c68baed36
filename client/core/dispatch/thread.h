// What the client keeps per application thread: its context stack, and the place where its replies arrive.
//
// Ownership: registered with the process on first use; the index is given back when the thread ends, so that a new
//   thread may take it (and with it the server's per-thread stream).
// Threads: everything here is the owning thread's, except the reply slot, which the receiving thread fills.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/spin.h"
#include "protocol/calls/cuda_api.h"
#include "protocol/codec/record.h"

namespace gpupool::client {

struct ContextState;

// A thread waits for at most one reply at a time.
class ReplySlot {
  public:
    struct Reply {
        codec::ReplyHeader header{};
        std::vector<std::byte> body;
        bool lost = false;  // the session ended first
    };

    // By the waiting thread, before it sends a command of this opcode.
    void expect(std::uint16_t opcode);
    Reply& wait();
    // Looks for it for as long as that pays before it is waited for, and calls `also` all the time.
    template <class Also>
    void poll(Also&& also) {
        (void)spin_.until(
            [&] {
                also();
                return there_.load(std::memory_order_acquire);
            },
            kLookForReplyFor);
    }
    // By the receiving thread. False when nobody waits for it.
    bool deliver(const codec::ReplyHeader& header, const std::byte* body, std::size_t bytes);
    void lose();

  private:
    // A driver looks all the time while it waits for the GPU, unless it is told to yield or to sleep.
    static constexpr std::chrono::milliseconds kLookForReplyFor{5};

    AdaptiveMutex mutex_;
    Condition arrived_;
    bool expected_ GP_GUARDED_BY(mutex_) = false;
    std::uint16_t opcode_ GP_GUARDED_BY(mutex_) = 0;
    std::atomic<bool> there_{false};  // set with the mutex held; looked at without
    Spin spin_;                       // the waiting thread's
    Reply reply_ GP_GUARDED_BY(mutex_);
};

struct ThreadState {
    std::uint32_t index = 0;
    std::vector<ContextState*> stack;  // the last is current
    bool per_thread_default = false;   // within a call of the per-thread form
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    bool in_host_function = false;   // CUDA calls are not permitted there
    bool wait_for_replies = false;   // also of deferred calls
    std::uint64_t last_command = 0;  // its number in the session
    // The stream that it waited for last, a StreamKey, and the command that did.
    struct Waited {
        std::pair<std::uint64_t, std::uint64_t> stream;
        std::uint64_t command = ~std::uint64_t{0};
    };
    Waited last_waited;
    ReplySlot reply;
    std::vector<std::byte> packed_rows;  // of a small copy, while its command is written; keeps its memory

    [[nodiscard]] ContextState* current() const { return stack.empty() ? nullptr : stack.back(); }
};

// The calling thread's.
ThreadState& this_thread();

// By index, for the receiving thread; null when no thread has it.
// The slot stays valid: thread states are recycled, never freed.
ThreadState* thread_by_index(std::uint32_t index);

// All threads that wait learn that the session is lost.
void lose_all_replies();

// In a forked child, where only the calling thread goes on.
void reset_threads_after_fork();

// Within it, NULL means the calling thread's own default stream.
class PerThreadDefault {
  public:
    PerThreadDefault() : thread_(this_thread()), before_(thread_.per_thread_default) {
        thread_.per_thread_default = true;
    }
    ~PerThreadDefault() { thread_.per_thread_default = before_; }
    PerThreadDefault(const PerThreadDefault&) = delete;
    PerThreadDefault& operator=(const PerThreadDefault&) = delete;

  private:
    ThreadState& thread_;
    const bool before_;
};

// Within it, deferred calls wait for their reply too: where only the driver knows the answer.
class WaitForReplies {
  public:
    explicit WaitForReplies(bool wait = true) : thread_(this_thread()), before_(thread_.wait_for_replies) {
        thread_.wait_for_replies = wait || before_;
    }
    ~WaitForReplies() { thread_.wait_for_replies = before_; }
    WaitForReplies(const WaitForReplies&) = delete;
    WaitForReplies& operator=(const WaitForReplies&) = delete;

  private:
    ThreadState& thread_;
    const bool before_;
};

}  // namespace gpupool::client
