// Batches of contiguous copies (cuMemcpyBatchAsync). They are checked one by one, so that the failing one is known;
// then those that the GPU makes by itself travel in one command.
//
// Ownership: none.
// Threads: any thread of the application.
// Errors: the driver's.
#pragma once

#include <cstddef>
#include <vector>

#include "client/calls/copy_parts.h"
#include "protocol/calls/internal.h"

namespace gpupool::client::entry {

class CopyBatch {
  public:
    CopyBatch(Session& s, CUstream stream) : s_(s), stream_(stream) {}

    // Adds a copy of `bytes` bytes. Fails if the driver would refuse it.
    CUresult add(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUmemcpySrcAccessOrder order);
    // Gives all of them to the stream. The copies have no order among themselves.
    CUresult send();

  private:
    // A copy that has an end in the program's memory.
    struct HostCopy {
        CUdeviceptr dst, src;
        std::size_t bytes;
        CUmemcpySrcAccessOrder order;
    };

    CUresult send_on_device();
    CUresult send_to_device();
    CUresult send_late(const std::vector<const HostCopy*>& late);
    CUresult send_from_device();
    CUresult send_on_host();

    Session& s_;
    const CUstream stream_;
    std::vector<HostCopy> on_host_, to_device_, from_device_;
    std::vector<CopyRange> on_device_;
    std::vector<CopyRange> to_ask_;  // of addresses that the client does not know: the driver decides
    bool is_awaited_ = false;        // a copy must have been made when the call returns
};

// The index when no single copy is to blame.
constexpr std::size_t kNoCopy = ~std::size_t{0};

// Begins a call. Fails without a usable context, or if the stream is the legacy one.
CUresult begin_batch(Session*& s, CUstream stream);
// May the stream be given a batch? Not while it captures.
CUresult check_batch_stream(const Session& s, CUstream stream);
// Are these an order of access and flags that the driver knows?
bool is_valid_access(CUmemcpySrcAccessOrder order, unsigned flags);

}  // namespace gpupool::client::entry
