// Objects of the program that graphs keep alive (cuUserObject*). The client counts the references; the server knows
// nothing of them.
//
// A graph has references of its own. Its clones, the nodes of which it is the child graph, and its executables have as
// many as it had when they were made. Destructors run in the call that releases the last reference, on its thread. If
// that reference is a launched executable's, they run after it is destroyed and its launches are complete, on the
// thread of host functions.
//
// Ownership: numbers and addresses only; the application owns its objects.
// Threads: any. The caller runs destructors, without any lock. While there are no objects, calls are one relaxed load.
// Errors: the driver's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class UserObjects {
  public:
    struct Destructor {
        CUhostFn function = nullptr;
        void* object = nullptr;
    };
    // What the caller has to run.
    using Destructors = std::vector<Destructor>;

    void create(CUuserObject object, Destructor destructor, unsigned count);
    // `count` is at least 1.
    CUresult retain(CUuserObject object, unsigned count);
    CUresult release(CUuserObject object, unsigned count, Destructors& due);
    // `moves`: the program's own references become the graph's.
    CUresult retain(CUgraph graph, CUuserObject object, unsigned count, bool moves);
    CUresult release(CUgraph graph, CUuserObject object, unsigned count, Destructors& due);

    // ---- what happens to graphs
    void clone(CUgraph graph, CUgraph clone);
    void add_child(CUgraph child, CUgraph parent, CUgraphNode node);
    void destroy(CUgraph graph, Destructors& due);
    void destroy(CUgraphNode node, Destructors& due);
    // True if the executable has references, so that the server must count its launches.
    bool instantiate(CUgraphExec executable, CUgraph graph);
    void launch(CUgraphExec executable);
    // True if the executable has references now and had none before.
    bool update(CUgraphExec executable, CUgraph graph, Destructors& due);
    // The executable is destroyed. If it was launched, its references stay until finish(), and this returns its
    // number; else 0.
    std::uint64_t destroy(CUgraphExec executable, Destructors& due);
    void finish(std::uint64_t number, Destructors& due);

  private:
    using References = std::map<CUuserObject, std::int64_t>;
    struct Object {
        Destructor destructor;
        std::int64_t references = 0;  // all of them. The program may release more than it has
    };
    struct Child {
        CUgraph parent = nullptr;
        References references;
    };
    struct Executable {
        References references;
        bool launched = false;
    };

    // All references of a graph and of its child graphs.
    References of(CUgraph graph) const GP_REQUIRES(mutex_);
    void hold(const References& references) GP_REQUIRES(mutex_);
    void let_go(const References& references, Destructors& due) GP_REQUIRES(mutex_);
    void let_go(CUuserObject object, std::int64_t count, Destructors& due) GP_REQUIRES(mutex_);
    [[nodiscard]] bool none() const { return !any_.load(std::memory_order_relaxed); }

    std::atomic<bool> any_{false};
    mutable Mutex mutex_;
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::unordered_map<CUuserObject, Object> objects_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraph, References> graphs_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphNode, Child> children_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphExec, Executable> executables_ GP_GUARDED_BY(mutex_);
    std::unordered_map<std::uint64_t, References> finishing_ GP_GUARDED_BY(mutex_);
};

// Runs them on the calling thread. They may make no CUDA calls, as in the driver.
void run(const UserObjects::Destructors& due);

}  // namespace gpupool::client
