// Pinned host memory that the GPU uses at its own address ("mapped", "zero copy") when the transport cannot share
// memory.
//
// The worker has a mirror of such memory at the same address, registered with its driver. Both sides keep a baseline,
// what they last agreed on (protocol/codec/memory_changes.h). The client sends the program's changes to the mirror
// before every command that may let the GPU read them. The worker sends the GPU's changes back before every reply that
// a program may synchronize with. Independently of that, a program and a kernel that poll each other's writes see them
// some milliseconds late. Every comparison reads all mirrored memory, so large blocks slow down every launch.
//
// If the address is in use in the worker, and the program asks for the memory's device pointer, the mirror is at
// another address.
//
// Memory gets a mirror when the GPU is given its address: the program asks for its device pointer, or passes the
// address to a launch, a memset, a copy or a memory operation.
//
// The application may unmap memory that it registered, or make it inaccessible, without telling CUDA. The client then
// stops using those addresses, whatever is mapped there later, and the GPU keeps what the mirror has.
//
// Over a shared memory connection the worker maps the very memory that gpupool allocated for the program, at the same
// address. Such a block has no baseline and is never compared.
//
// Ownership: the application owns the memory; the baselines are owned here.
// Threads: any; apply() only the receiving thread, and it never waits for a sender.
// Errors: publish() returns the driver's; the other methods say what their results mean.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "client/core/memory/address_search.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"
#include "protocol/codec/memory_changes.h"

namespace gpupool::client {

class HostMirrors {
  public:
    explicit HostMirrors(TimeSource& clock = TimeSource::system()) : clock_(clock) {}

    // How many mirrors have been made so far.
    [[nodiscard]] std::uint64_t made() const { return made_.load(std::memory_order_acquire); }
    // Is there any memory to compare?
    [[nodiscard]] bool any() const { return compared_.load(std::memory_order_acquire) != 0; }
    // Is there any memory to search, mirrored or shared?
    [[nodiscard]] bool any_to_search() const { return count_.load(std::memory_order_acquire) != 0; }
    // The GPU's address for the program's memory at `address`: the same or another one; 0 if it has none.
    [[nodiscard]] std::uint64_t device_address(std::uint64_t address) const;
    // The reverse. An address that is not the GPU's of a mirror stays as it is.
    [[nodiscard]] std::uint64_t program_address(std::uint64_t address) const;

    // Is `address`, as the GPU sees it, the program's host memory, shared or mirrored?
    [[nodiscard]] bool is_host(std::uint64_t address) const;

    // Which side mapped the memory and may unmap it.
    enum class Owner { gpupool, application };

    // The worker has made a mirror at `device_base`, filled with zeros. False if there is no memory for the baseline.
    bool add(std::uint64_t base, std::uint64_t bytes, std::uint64_t device_base, Owner owner);
    // The worker has mapped the memory itself, at the same address.
    void add_shared(std::uint64_t base, std::uint64_t bytes);
    [[nodiscard]] bool is_shared(std::uint64_t address) const;
    void remove(std::uint64_t base);

    // Passes what the program has changed to `send`. A second thread waits until the first one has sent: its later
    // command must not overtake changes that the first one has already put into the baseline. Words of the changed
    // memory that lie within the bounds of `search` are kept for take_found(); of all memory, if blocks were added
    // since it was last searched: one may have the address of an earlier block, which the memory still holds. `search`
    // is also called after the memory was read, so that it knows of every block whose address the program has stored
    // there.
    // Shared memory is searched at every call, but at most kMaxSharedBytes of it, in blocks of at most
    // kMaxSearchedBytes.
    static constexpr std::size_t kMaxSharedBytes = 1u << 20;
    struct Search {
        AddressBounds bounds;
        std::uint64_t added = 0;  // how many blocks were added so far
    };
    CUresult publish(const std::function<CUresult(std::span<const std::byte>)>& send,
                     const std::function<Search()>& search = {});
    // The addresses that publish() has found since the last call.
    std::vector<std::uint64_t> take_found();
    // Writes what the GPU has changed to the program's memory. False if there is no such memory.
    bool apply(std::span<const std::byte> record);

    // Starts the mirror poller, unless it runs: a thread that calls `publish` every few milliseconds while there is a
    // mirror. It ends when `publish` returns false.
    void start_polling(std::function<bool()> publish);

  private:
    struct Mirror {
        codec::SharedBlock block;  // block.address is the GPU's
        codec::Baseline baseline;
        Owner owner = Owner::gpupool;
        std::uint64_t searched = 0;  // Search::added when all of it was searched
        bool gone = false;           // the application's memory is not accessible any more
        bool shared = false;
    };
    void count() GP_REQUIRES(mutex_);
    // By the program's address, and by the GPU's, which records contain.
    const Mirror* find(std::uint64_t address) const GP_REQUIRES(mutex_);
    Mirror* find_of_device(std::uint64_t address) const GP_REQUIRES(mutex_);  // not of shared memory
    void leave_alone(Mirror& mirror) GP_REQUIRES(mutex_);
    void search_changes(const codec::SharedBlock& part, std::span<const std::byte> record, const AddressBounds& bounds)
        GP_REQUIRES(publishing_);
    void search_shared(const AddressBounds& bounds) GP_REQUIRES(publishing_);
    void search_part(const codec::SharedBlock& part, const AddressBounds& bounds) GP_REQUIRES(publishing_);
    void compare(Mirror& mirror, codec::SharedBlock part, const std::function<void(std::span<const std::byte>)>& emit)
        GP_REQUIRES(mutex_);

    TimeSource& clock_;
    Mutex publishing_ GP_ACQUIRED_BEFORE(mutex_);  // held while sending
    struct ToSend {
        std::vector<std::byte> records;
        std::vector<std::size_t> ends;     // end offset of each record
        std::vector<std::uint64_t> bases;  // base addresses of the mirrors to compare
    };
    ToSend to_send_ GP_GUARDED_BY(publishing_);  // kept for its capacity
    std::vector<std::uint64_t> found_ GP_GUARDED_BY(publishing_);
    std::atomic<bool> any_found_{false};
    mutable Mutex mutex_;
    std::map<std::uint64_t, Mirror> mirrors_ GP_GUARDED_BY(mutex_);        // by the program's address
    std::map<std::uint64_t, Mirror*> device_bases_ GP_GUARDED_BY(mutex_);  // by the GPU's address
    std::vector<std::byte> copy_ GP_GUARDED_BY(mutex_);  // copy of the application's memory for a comparison
    std::atomic<std::size_t> count_{0};                  // size of mirrors_
    std::atomic<std::uint64_t> made_{0};
    std::atomic<std::size_t> compared_{0};  // size of device_bases_: mirrors with a baseline
    bool polling_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
