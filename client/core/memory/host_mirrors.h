// Pinned host memory that the GPU uses at its own address ("mapped", "zero copy"), over a transport that cannot share
// it.
//
// The worker has a mirror of such memory, at the same address and registered with its driver. Both sides know what they
// last agreed on (protocol/codec/memory_changes.h): what the program has written goes to the mirror before every
// command that may let the GPU read it, what the GPU has written comes back before every reply that a program may
// synchronize with. In between, a program and a kernel that poll each other's writes see them some milliseconds
// late. Every comparison reads all mirrored memory, so large blocks make every launch slower.
//
// Where the worker has something else at the program's address, a mirror for which a device pointer is asked lies
// elsewhere.
//
// Only memory that the GPU was seen to be given has a mirror: its device pointer was asked for, or its address was an
// argument of a launch, a memset, a copy or a memory operation.
//
// The application may unmap memory that it registered, or take its access away, and go on: from then on the mirror is
// what the GPU has, and this side leaves the addresses alone, whatever comes to lie there.
//
// Over a shared memory connection the worker has the very memory that gpupool allocated for the program, at the same
// address: such a block has no baseline and is never compared.
//
// Ownership: blocks are the application's memory, their baselines are kept here. Threads: any; apply() is the receiving
//   thread's and never waits for a sender. Errors: the driver's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"
#include "protocol/codec/memory_changes.h"

namespace gpupool::client {

class HostMirrors {
  public:
    // Something has to be compared.
    [[nodiscard]] bool any() const { return compared_.load(std::memory_order_acquire) != 0; }
    // Where the GPU has the memory that the program has at `address`: there, or elsewhere; 0: nowhere.
    [[nodiscard]] std::uint64_t device_address(std::uint64_t address) const;

    // Is what the GPU has at `address` the program's memory, shared or mirrored?
    [[nodiscard]] bool is_host(std::uint64_t address) const;

    // Who has mapped the memory, and so who may unmap it.
    enum class Owner { gpupool, application };

    // The worker has a mirror, full of zeros, at `device_base`. False: no memory for the baseline.
    bool add(std::uint64_t base, std::uint64_t bytes, std::uint64_t device_base, Owner owner);
    // The worker has the memory itself, at the same address.
    void add_shared(std::uint64_t base, std::uint64_t bytes);
    [[nodiscard]] bool is_shared(std::uint64_t address) const;
    void remove(std::uint64_t base);

    // Hands over what the program has changed. Of two threads the second waits until the first has sent: whoever comes
    // later must not overtake what it takes for known.
    CUresult publish(const std::function<CUresult(std::span<const std::byte>)>& send);
    // What the GPU has changed; false: no such memory.
    bool apply(std::span<const std::byte> record);

    // Calls `publish` every few milliseconds while there is a mirror, on a thread of its own.
    void watch(std::function<bool()> publish);

  private:
    struct Mirror {
        codec::SharedBlock block;  // its address is the GPU's
        codec::Baseline baseline;
        Owner owner = Owner::gpupool;
        bool gone = false;  // the application's memory is not there any more
        bool shared = false;
    };
    void count() GP_REQUIRES(mutex_);  // with mutex_ held
    // With mutex_ held; by the program's address, and by the GPU's, which records name.
    const Mirror* find(std::uint64_t address) const GP_REQUIRES(mutex_);
    Mirror* find_of_device(std::uint64_t address) const GP_REQUIRES(mutex_);  // not of what is shared
    // With mutex_ held.
    static void leave_alone(Mirror& mirror);
    void compare(Mirror& mirror, codec::SharedBlock part, const std::function<void(std::span<const std::byte>)>& emit)
        GP_REQUIRES(mutex_);

    Mutex publishing_;  // taken before mutex_, and held while sending; guards what is kept for the next time:
    struct ToSend {
        std::vector<std::byte> records;
        std::vector<std::size_t> ends;     // of each record
        std::vector<std::uint64_t> bases;  // of the mirrors that are compared
    } to_send_;
    mutable Mutex mutex_;                                                  // guards what follows
    std::map<std::uint64_t, Mirror> mirrors_ GP_GUARDED_BY(mutex_);        // by the program's address
    std::map<std::uint64_t, Mirror*> device_bases_ GP_GUARDED_BY(mutex_);  // by the GPU's
    std::vector<std::byte> copy_ GP_GUARDED_BY(mutex_);  // of the application's memory, while it is compared
    std::atomic<std::size_t> count_{0};                  // of mirrors_
    std::atomic<std::size_t> compared_{0};               // of those with a baseline: device_bases_
    bool watching_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
