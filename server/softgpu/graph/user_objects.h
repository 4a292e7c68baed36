// The program's objects that graphs keep alive (cuUserObject*): a counter with a destructor.
//
// Ownership: `graphs()` resolves handles as long as there are references.
// Threads: any. A destructor runs on the thread that releases the last reference, and may call no function of the
//   driver. Errors: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "protocol/calls/cuda_api.h"

namespace gpupool::softgpu {

class UserObject {
  public:
    UserObject(CUhostFn destructor, void* object, std::int64_t references)
        : destructor_(destructor), object_(object), references_(references) {}

    void retain(std::int64_t count) { references_.fetch_add(count); }
    // The program may release more than it has: then the destructor never runs.
    void release(std::int64_t count);

  private:
    const CUhostFn destructor_;
    void* const object_;
    std::atomic<std::int64_t> references_;
};

// The references of a graph. A copy has as many of its own.
class UserReferences {
  public:
    UserReferences() = default;
    UserReferences(const UserReferences& other);
    UserReferences& operator=(const UserReferences& other);
    ~UserReferences();

    // Takes references that were counted before.
    void add(const std::shared_ptr<UserObject>& object, std::int64_t count) { counts_[object] += count; }
    void release(const std::shared_ptr<UserObject>& object, std::int64_t count);

  private:
    std::map<std::shared_ptr<UserObject>, std::int64_t> counts_;
};

}  // namespace gpupool::softgpu
