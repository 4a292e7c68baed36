#include "server/worker/memory/driver_memory.h"

#include <algorithm>

#include "common/round_up.h"
#include "server/worker/memory/memory_account.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {
namespace {

// Measured on an H200 (docs/driver-facts.md): 70 MiB for 128 streams, 22 MiB for 10,000 nodes.
std::uint64_t stream_bytes(std::size_t streams) {
    constexpr std::uint64_t kBytes = 576u << 10;
    return (streams - std::min(streams, DriverMemory::kStreamsOfContext)) * kBytes;
}

std::uint64_t node_bytes(std::uint64_t nodes) {
    constexpr std::uint64_t kUncounted = 4096, kBytes = 2304;
    return (nodes - std::min(nodes, kUncounted)) * kBytes;
}

std::uint64_t threads_at_once(const driver::Api& api, CUdevice device) {
    int processors = 0, threads = 0;
    driver::call(api.cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    driver::call(api.cuDeviceGetAttribute, &threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return static_cast<std::uint64_t>(processors) * static_cast<std::uint64_t>(threads);
}

}  // namespace

DriverMemory::Limits DriverMemory::read_limits(const driver::Api& api) {
    Limits limits;
    for (const CUlimit limit : {CU_LIMIT_STACK_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE}) {
        if (std::size_t value = 0; driver::call(api.cuCtxGetLimit, &value, limit) == CUDA_SUCCESS) {
            limits[limit] = value;
        }
    }
    return limits;
}

void DriverMemory::made(const driver::Api& api, const ContextState& context, Limits limits) {
    Context& known = contexts_[&context];
    known.original = std::move(limits);
    known.threads = threads_at_once(api, context.device);
}

std::uint64_t DriverMemory::needed_bytes(const ContextState& context, CUlimit limit, std::size_t value) const {
    constexpr std::size_t kMaxValue = std::size_t{1} << 45;
    constexpr std::size_t kStackUnit = 16;  // to which the driver rounds it up
    const auto known = contexts_.find(&context.owner());
    if (known == contexts_.end() || !known->second.original.contains(limit)) {
        return 0;
    }
    const std::size_t asked = round_up(std::min(value, kMaxValue), kStackUnit);
    const std::uint64_t more = asked - std::min(asked, known->second.original.at(limit));
    return limit == CU_LIMIT_STACK_SIZE ? more * known->second.threads : more;
}

std::uint64_t DriverMemory::counted_bytes(const ContextState& context, CUlimit limit) const {
    const auto known = contexts_.find(&context.owner());
    if (known == contexts_.end()) {
        return 0;
    }
    const auto counted = known->second.counted_bytes.find(limit);
    return counted == known->second.counted_bytes.end() ? 0 : counted->second;
}

void DriverMemory::count(const ContextState& context, CUlimit limit, std::uint64_t bytes) {
    const auto known = contexts_.find(&context.owner());
    if (known == contexts_.end()) {
        return;
    }
    std::uint64_t& counted = known->second.counted_bytes[limit];
    if (bytes < counted) {
        account_.release(context.device, counted - bytes);
    }
    counted = bytes;
}

std::size_t DriverMemory::counted_stack(const ContextState& context) const {
    const auto known = contexts_.find(&context.owner());
    if (known == contexts_.end() || !known->second.original.contains(CU_LIMIT_STACK_SIZE)) {
        return 0;
    }
    const std::uint64_t threads = std::max<std::uint64_t>(known->second.threads, 1);
    return known->second.original.at(CU_LIMIT_STACK_SIZE) + counted_bytes(context, CU_LIMIT_STACK_SIZE) / threads;
}

void DriverMemory::forget(const ContextState& context) {
    const auto known = contexts_.find(&context);
    if (known == contexts_.end()) {
        return;
    }
    for (const auto& [limit, bytes] : known->second.counted_bytes) {
        account_.release(context.device, bytes);
    }
    account_.release(context.device, stream_bytes(known->second.most_streams));
    contexts_.erase(known);
    end_context(context.device);
}

std::uint64_t DriverMemory::needed_for_context(CUdevice device) const {
    return contexts_on_.contains(device) ? account_.context_bytes(device) : 0;
}

void DriverMemory::end_context(CUdevice device) {
    const auto count = contexts_on_.find(device);
    if (count == contexts_on_.end()) {
        return;
    }
    if (--count->second == 0) {
        contexts_on_.erase(count);
    } else {
        account_.release(device, account_.context_bytes(device));
    }
}

std::uint64_t DriverMemory::needed_for_streams(const ContextState& context, std::size_t count) const {
    const auto known = contexts_.find(&context.owner());
    const std::size_t before = known == contexts_.end() ? count : known->second.most_streams;
    return stream_bytes(std::max(count, before)) - stream_bytes(before);
}

void DriverMemory::note_streams(const ContextState& context, std::size_t count) {
    if (const auto known = contexts_.find(&context.owner()); known != contexts_.end()) {
        known->second.most_streams = std::max(known->second.most_streams, count);
    }
}

std::uint64_t DriverMemory::needed_for_nodes(std::uint64_t count) const {
    return node_bytes(std::max(count, most_nodes_)) - node_bytes(most_nodes_);
}

}  // namespace gpupool::worker
