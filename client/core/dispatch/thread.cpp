#include "client/core/dispatch/thread.h"

#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <thread>

#include "common/mutex.h"

namespace gpupool::client {
namespace {

struct ThreadRegistry {
    Mutex mutex;
    // Never shrinks, so that the receiving thread's pointers stay valid.
    std::deque<ThreadState> states GP_GUARDED_BY(mutex);
    std::vector<ThreadState*> spare GP_GUARDED_BY(mutex);
};

// Never destroyed: threads may outlive main().
ThreadRegistry& thread_registry() {
    static auto& instance = *new ThreadRegistry;
    return instance;
}

struct Holder {
    ThreadState* state = nullptr;
    ~Holder();
};

thread_local Holder holder;
thread_local ThreadState* own = nullptr;

Holder::~Holder() {
    // The main thread's exit handlers run after this and use the context that it left current.
    if (state != nullptr && ::gettid() != ::getpid()) {
        ThreadRegistry& r = thread_registry();
        const Lock lock(r.mutex);
        state->stack.clear();
        r.spare.push_back(state);
        own = nullptr;  // another thread may own the state when a later destructor of this thread runs
    }
}

ThreadState& register_thread() {
    ThreadRegistry& r = thread_registry();
    const Lock lock(r.mutex);
    if (r.spare.empty()) {
        r.states.emplace_back();
        r.states.back().index = static_cast<std::uint32_t>(r.states.size() - 1);
        own = &r.states.back();
    } else {
        own = r.spare.back();
        r.spare.pop_back();
        own->per_thread_default = false;
        own->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    }
    holder.state = own;
    return *own;
}

}  // namespace

ThreadState& this_thread() {
    return own != nullptr ? *own : register_thread();
}

ThreadState* thread_by_index(std::uint32_t index) {
    ThreadRegistry& r = thread_registry();
    const Lock lock(r.mutex);
    return index < r.states.size() ? &r.states[index] : nullptr;
}

void lose_all_replies() {
    ThreadRegistry& r = thread_registry();
    const Lock lock(r.mutex);
    for (ThreadState& state : r.states) {
        state.reply.lose();
    }
}

void reset_threads_after_fork() {
    // A thread that does not exist in the child may have held the registry's lock, so start with a new registry.
    own = nullptr;
    holder.state = nullptr;
    new (&thread_registry()) ThreadRegistry;
}

void ReplySlot::expect(std::uint16_t opcode) {
    const Lock lock(mutex_);
    expected_ = true;
    opcode_ = opcode;
    there_ = false;
    reply_.lost = false;
}

ReplySlot::Reply& ReplySlot::wait() {
    UniqueLock lock(mutex_);
    arrived_.wait(lock, [&]() GP_REQUIRES(mutex_) { return there_.load(std::memory_order_relaxed); });
    expected_ = false;
    return reply_;
}

bool ReplySlot::deliver(const codec::ReplyHeader& header, const std::byte* body, std::size_t bytes) {
    {
        const Lock lock(mutex_);
        if (!expected_ || there_ || header.opcode != opcode_) {
            return false;
        }
        reply_.header = header;
        reply_.body.assign(body, body + bytes);
        there_ = true;
    }
    arrived_.notify_one();
    return true;
}

void ReplySlot::lose() {
    {
        const Lock lock(mutex_);
        if (!expected_ || there_) {
            return;
        }
        reply_.lost = true;
        there_ = true;
    }
    arrived_.notify_one();
}

}  // namespace gpupool::client
