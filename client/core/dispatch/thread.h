// The client's state per application thread: its context stack, and the slot in which its replies arrive.
//
// Ownership: a thread registers on first use. When it ends, its state and index go to the next new thread, which
// thereby also gets the server's per-thread stream of that index.
// Threads: only the owning thread, except for the reply slot, which the receiving thread fills.
// Errors: none.
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

    // The waiting thread calls this before it sends a command of this opcode.
    void expect(std::uint16_t opcode);
    Reply& wait();
    // Polls for the reply for as long as that pays, calling `also` in between. Call wait() afterwards.
    template <class Also>
    void poll(Also&& also) {
        (void)spin_.until(
            [&] {
                also();
                return there_.load(std::memory_order_acquire);
            },
            kPollForReplyFor);
    }
    // Called by the receiving thread. False if the thread does not expect this reply.
    bool deliver(const codec::ReplyHeader& header, const std::byte* body, std::size_t bytes);
    void lose();

  private:
    // The driver by default spins for as long as it waits for the GPU.
    static constexpr std::chrono::milliseconds kPollForReplyFor{5};

    AdaptiveMutex mutex_;
    Condition arrived_;
    bool expected_ GP_GUARDED_BY(mutex_) = false;
    std::uint16_t opcode_ GP_GUARDED_BY(mutex_) = 0;
    std::atomic<bool> there_{false};  // set under the mutex; polled without
    Spin spin_;                       // used by the waiting thread only
    Reply reply_ GP_GUARDED_BY(mutex_);
};

struct ThreadState {
    std::uint32_t index = 0;
    std::vector<ContextState*> stack;  // the last is current
    bool per_thread_default = false;   // during a call of the per-thread-stream form (_ptsz)
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    bool in_host_function = false;   // CUDA calls are not permitted there
    bool wait_for_replies = false;   // also of deferred calls
    std::uint64_t last_command = 0;  // its sequence number in the session
    // The stream that the thread waited for last (a StreamKey), and the number of the command that waited.
    struct Waited {
        std::pair<std::uint64_t, std::uint64_t> stream;
        std::uint64_t command = ~std::uint64_t{0};
    };
    Waited last_waited;
    ReplySlot reply;
    std::vector<std::byte> packed_rows;  // rows of a small copy while its command is written; keeps its capacity

    [[nodiscard]] ContextState* current() const { return stack.empty() ? nullptr : stack.back(); }
};

// The state of the calling thread; registers it on first use.
ThreadState& this_thread();

// For the receiving thread: the state with this index, or null. It stays valid: states are recycled, never freed.
ThreadState* thread_by_index(std::uint32_t index);

// Wakes all waiting threads: the session is lost.
void lose_all_replies();

// For a forked child, in which only the calling thread exists.
void reset_threads_after_fork();

// While it lives, the context is current in the calling thread. Null: the thread's own stays current.
class CurrentContext {
  public:
    explicit CurrentContext(ContextState* context) : thread_(this_thread()), pushed_(context != nullptr) {
        if (pushed_) {
            thread_.stack.push_back(context);
        }
    }
    ~CurrentContext() {
        if (pushed_) {
            thread_.stack.pop_back();
        }
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    ThreadState& thread_;
    const bool pushed_;
};

// While it lives, the stream NULL means the calling thread's default stream: for the `_ptsz` and `_ptds` entry points.
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

// During its lifetime, deferred calls of this thread wait for their replies: for calls whose result only the driver
// knows.
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
