// Counts the device memory of code: variables and constants of modules and libraries, and the code of the kernels that
// were used (server/worker/images/image_memory.h).
//
// A library's memory is taken in each context that uses it, at the first use. A kernel's code counts with the first
// use of the kernel in a context.
//
// NVIDIA's driver also takes memory for the device's runtime when a context first uses code that prints, or code that
// allocates, and keeps it (docs/driver-facts.md).
//
// Ownership: `account` outlives this. Handles are the client's.
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "protocol/calls/cuda_api.h"
#include "server/worker/images/image_memory.h"

namespace gpupool::worker {

struct ContextState;
class MemoryAccount;

class CodeMemory {
  public:
    struct Runtime {
        std::uint64_t prints_bytes = 0, allocates_bytes = 0;
    };
    static constexpr Runtime kOfNvidia{64u << 20, 148u << 20};  // with the heap's original size

    explicit CodeMemory(MemoryAccount& account) : account_(account) {}

    void set_runtime(Runtime runtime) { runtime_ = runtime; }

    // A module or library was loaded. `context`: where its data is charged already; null: nowhere yet.
    void add(std::uint64_t handle, ImageMemory memory, const ContextState* context);
    // The handle of a library's kernel.
    void add_kernel(std::uint64_t kernel, std::uint64_t library, std::string name);

    struct Use {
        std::uint64_t owner = 0;  // module or library; 0: unknown
        std::string kernel;       // empty: only the data is used
        std::uint64_t bytes = 0;  // that must be charged for it
        Runtime runtime = {};     // the part of them that stays when the code has ended
    };
    // The first use of a kernel in the context, or only of the data of a module or library. `handle` may also be a
    // kernel's.
    [[nodiscard]] Use first_use(std::uint64_t handle, const ContextState& context, const std::string& kernel) const;
    // Its bytes have been charged.
    void note(const Use& use, const ContextState& context);

    // The module or library has ended. False if it is not known.
    bool forget(std::uint64_t handle);
    void forget(const ContextState& context);

  private:
    struct Loaded {
        CUdevice device = 0;
        std::uint64_t bytes = 0;
        std::set<std::string> kernels;
    };
    struct Code {
        ImageMemory memory;
        std::map<const ContextState*, Loaded> loaded;
        std::set<std::uint64_t> kernels;  // handles
    };

    MemoryAccount& account_;
    Runtime runtime_;
    std::map<const ContextState*, std::pair<CUdevice, Runtime>> runtimes_;              // what each context has
    std::unordered_map<std::uint64_t, Code> code_;                                      // by module or library
    std::unordered_map<std::uint64_t, std::pair<std::uint64_t, std::string>> kernels_;  // library and name
};

}  // namespace gpupool::worker
