// The device memory that a session has allocated.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/driver/api.h"
#include "server/worker/graphs/graph_memory.h"
#include "server/worker/memory/code_memory.h"
#include "server/worker/memory/driver_memory.h"
#include "server/worker/memory/memory_account.h"
#include "server/worker/memory/pool_accounts.h"
#include "server/worker/memory/window.h"

namespace gpupool::worker {

struct ContextState;

struct Slab {
    CUdevice device;
    std::size_t bytes;
    CUmemGenericAllocationHandle allocation;
};

// Memory that the driver allocated for the client at an address of the driver's choice.
struct Allocation {
    CUdevice device;
    std::uint64_t bytes;
};

// Memory of cuMemCreate. It lives as long as it has references to its handles or places where it is mapped.
struct SharedAllocation : Allocation {
    std::size_t references = 0;
    std::size_t mappings = 0;
};

// One of its handles.
struct SharedHandle {
    std::shared_ptr<SharedAllocation> allocation;
    std::size_t references = 0;
};

struct Mapping {
    std::uint64_t bytes;
    std::shared_ptr<SharedAllocation> allocation;
};

struct Array : Allocation {
    const ContextState* context;  // ends with the context
    // Memory that was mapped into the array (cuMemMapArrayAsync), kept until the array ends.
    std::set<std::shared_ptr<SharedAllocation>> tiles;
};

struct DeviceMemory {
    // Called with the memory in use on each device.
    using Report = std::function<void(std::vector<std::uint64_t>)>;

    explicit DeviceMemory(std::unique_ptr<MemoryAccount> its_account, Window its_window = {}, Report its_report = {})
        : owned_account_(std::move(its_account)), report_(std::move(its_report)), window(its_window) {}

  private:
    std::unique_ptr<MemoryAccount> owned_account_;
    Report report_;
    std::uint64_t reported_ = 0;  // changes of the account

  public:
    const Window window;
    MemoryAccount& account = *owned_account_;
    std::map<std::uint64_t, Slab> slabs;                // by address
    std::set<std::pair<CUdevice, CUdevice>> peers;      // (device, device whose memory it may access)
    std::map<std::uint64_t, SharedHandle> allocations;  // by the driver's handle
    std::map<std::uint64_t, Mapping> mappings;          // mappings of `allocations`, by address
    PoolAccounts pools{account};                        // what the driver allocates in stream order
    GraphMemory graphs{account};
    CodeMemory code{account};
    DriverMemory driver{account};                     // what the driver takes by itself
    std::unordered_map<std::uint64_t, Array> arrays;  // by the client's handle

    // Reports the memory in use if the account has changed since the last report.
    void report() {
        if (std::exchange(reported_, account.changes()) != account.changes() && report_) {
            report_(account.used());
        }
    }
    [[nodiscard]] int device_count() const { return static_cast<int>(account.device_count()); }

    // The driver has returned a handle of the allocation, which may be one that it returned before.
    void add_reference(CUmemGenericAllocationHandle handle, const std::shared_ptr<SharedAllocation>& allocation);

    // Charges the account. If there is no room, first recounts the memory of pools, and then has idle graphs release
    // theirs: a driver that runs out of memory does that, too.
    bool charge(const driver::Api& api, CUdevice device, std::uint64_t bytes);
    // Charges the first use of a kernel in the context (null: none yet), or of the data of a module or library.
    CUresult charge_code(const driver::Api& api, std::uint64_t handle, const ContextState* context,
                         const std::string& kernel);
    // Charges what the driver takes for a context more on the device, for so many streams in the context, or for so
    // many nodes in the session's executable graphs: if that is more than before.
    bool charge_context(const driver::Api& api, CUdevice device);
    bool charge_streams(const driver::Api& api, const ContextState& context, std::size_t count);
    bool charge_nodes(const driver::Api& api, CUdevice device, std::uint64_t count);
    // Charges what the value of the limit takes in the context, if that is more than before.
    bool charge_limit(const driver::Api& api, const ContextState& context, CUlimit limit, std::size_t value);
    // Counts again what pools and graphs hold. True if that is less than before.
    bool recount(const driver::Api& api);
    // Releases the allocation from the account if it has neither references nor mappings; otherwise returns false.
    bool release_if_unused(const SharedAllocation& allocation);
    // The array's tiles are in that memory.
    void note_tiles(Array& array, const std::shared_ptr<SharedAllocation>& allocation);
    // False if there is no such array.
    bool forget_array(std::uint64_t client);
    void forget_arrays(const ContextState& context);

  private:
    void release(const Array& array);
};

// Grants device `reader` access to the session's slabs on device `owner`, now and for later slabs, or withdraws it.
void share_slabs(const driver::Api& api, DeviceMemory& memory, CUdevice owner, CUdevice reader, bool may);

}  // namespace gpupool::worker
