// Green contexts: contexts of some of a device's processors, and the resources that they are made of.
//
// A resource is a set of processors. It travels in the padding of CUdevResource, with a check sum, since the program
// must not change it.
#include <algorithm>
#include <bit>
#include <cstring>

#include "server/softgpu/api/export_tables.h"
#include "server/softgpu/api/functions.h"
#include "server/softgpu/api/objects.h"
#include "server/softgpu/graph/capture.h"

using namespace gpupool::softgpu;

namespace {

struct Processors {
    std::uint64_t check = 0;
    std::uint32_t device = 0;
    std::uint32_t is_whole = 0;  // of a device or a context: it may be split
    std::uint64_t bits[8] = {};  // by number

    [[nodiscard]] std::uint32_t count() const {
        std::uint32_t sum = 0;
        for (const std::uint64_t word : bits) {
            sum += static_cast<std::uint32_t>(std::popcount(word));
        }
        return sum;
    }
    void add(std::uint32_t number) { bits[number / 64] |= std::uint64_t{1} << number % 64; }
    [[nodiscard]] std::vector<std::uint32_t> numbers() const {
        std::vector<std::uint32_t> all;
        for (std::uint32_t number = 0; number < 512; ++number) {
            if ((bits[number / 64] >> number % 64 & 1) != 0) {
                all.push_back(number);
            }
        }
        return all;
    }
    [[nodiscard]] std::uint64_t sum() const {
        std::uint64_t value = 0xcbf29ce484222325 ^ device ^ std::uint64_t{is_whole} << 32;
        for (const std::uint64_t word : bits) {
            value = (value ^ word) * 0x100000001b3;
        }
        return value;
    }
};
static_assert(sizeof(Processors) <= sizeof(CUdevResource::_internal_padding));

// The fewest processors of a group, and what their number is a multiple of, by compute capability.
struct Granularity {
    std::uint32_t least, step;
};

Granularity granularity(bool ignores_coscheduling) {
    int major = 0;
    cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
    if (major < 8 || ignores_coscheduling) {
        return {2, 2};
    }
    return major == 8 ? Granularity{4, 2} : Granularity{8, 8};
}

CUdevResource resource_of(Processors processors) {
    CUdevResource resource{};
    const std::uint32_t count = processors.count();
    if (count == 0) {
        return resource;
    }
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource.sm.smCount = count;
    if (processors.is_whole != 0) {
        const Granularity usual = granularity(false);
        resource.sm.minSmPartitionSize = std::min(usual.least, count);
        resource.sm.smCoscheduledAlignment = std::min(usual.step, count);
    }
    processors.check = processors.sum();
    std::memcpy(resource._internal_padding, &processors, sizeof processors);
    return resource;
}

CUresult processors_of(const CUdevResource& resource, Processors& processors) {
    if (resource.type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    std::memcpy(&processors, resource._internal_padding, sizeof processors);
    const bool valid = processors.check == processors.sum() && processors.count() == resource.sm.smCount &&
                       processors.device < state().devices.size();
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

// `context`: null for the whole device.
CUresult store_whole(const Context* context, int device, CUdevResource* resource, CUdevResourceType type) {
    SOFTGPU_NOT_NULL(resource);
    if (type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    Processors all;
    all.device = static_cast<std::uint32_t>(device);
    all.is_whole = 1;
    if (context != nullptr && context->green()) {
        std::for_each(context->processors.begin(), context->processors.end(), [&](auto number) { all.add(number); });
    } else {
        for (std::uint32_t number = 0; number < processor_count(); ++number) {
            all.add(number);
        }
    }
    *resource = resource_of(all);
    return CUDA_SUCCESS;
}

// What a green context is made of. The driver has no call that frees a descriptor.
struct Descriptor {
    std::uint32_t device = 0;
    Processors processors;
};
Registry<Descriptor>& descriptors() {
    static auto& instance = *new Registry<Descriptor>;
    return instance;
}

CUresult find_context(CUcontext handle, ContextPtr& context) {
    SOFTGPU_READY();
    context = state().contexts.find(handle);
    if (context != nullptr) {
        return context->active.load() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return handle != nullptr && state().destroyed_contexts.find(handle) != nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                                                   : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult find_context(CUgreenCtx handle, ContextPtr& context) {
    const CUresult error = find_context(reinterpret_cast<CUcontext>(handle), context);
    return error == CUDA_SUCCESS && !context->green() ? CUDA_ERROR_INVALID_CONTEXT : error;
}

ContextPtr retain_primary(Device& device) {
    const Lock lock(state_mutex());
    Context& primary = *device.primary;
    ++primary.references;
    ++primary.of_greens;
    if (!primary.active.load()) {
        primary.open();
    }
    return device.primary;
}

void release_primary(Context& primary) {
    {
        const Lock lock(state_mutex());
        --primary.of_greens;
        if (--primary.references > 0) {
            return;
        }
    }
    notify_context_end(primary);
    const Lock lock(state_mutex());
    if (primary.references == 0 && primary.active.load()) {
        primary.close();
    }
}

// `handle`: of a context or a green context.
template <class Handle>
CUresult get_resource(Handle handle, CUdevResource* resource, CUdevResourceType type) {
    ContextPtr context;
    const CUresult error = find_context(handle, context);
    return error != CUDA_SUCCESS ? error : store_whole(context.get(), context->device->ordinal, resource, type);
}

template <class Handle>
CUresult record(Handle context_handle, CUevent handle) {
    ContextPtr context;
    if (const CUresult error = find_context(context_handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    const auto event = state().events.find(handle);
    if (event == nullptr || event->context != &context->owner()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult refused = refuse_wait(*context); refused != CUDA_SUCCESS) {
        return refused;
    }
    auto moment = std::make_shared<Moment>();
    {
        const Lock lock(event->mutex);
        event->moment = moment;
    }
    // In a stream of its own, so that no other stream becomes busy.
    auto beside = std::make_shared<Stream>(*context, CU_STREAM_NON_BLOCKING, 0);
    beside->submit(
        [work = context->submitted_work()]() -> CUresult {
            for (const auto& [stream, sequence] : work) {
                stream->wait(sequence);
            }
            return CUDA_SUCCESS;
        },
        moment);
    beside->retire();
    return CUDA_SUCCESS;
}

void await(Context& context, const std::shared_ptr<Moment>& moment) {
    std::vector<std::shared_ptr<Context>> greens;
    {
        const Lock lock(context.order_mutex);
        context.awaited.push_back(moment);
        for (const StreamPtr& stream : context.all_streams()) {
            stream->submit([moment, &context]() -> CUresult {
                moment->wait(context.stop);
                return CUDA_SUCCESS;
            });
        }
        for (const auto& green : context.greens) {
            if (auto known = green.lock()) {
                greens.push_back(std::move(known));
            }
        }
    }
    for (const ContextPtr& green : greens) {
        await(*green, moment);
    }
}

template <class Handle>
CUresult wait_for(Handle context_handle, CUevent handle) {
    ContextPtr context;
    if (const CUresult error = find_context(context_handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    const auto event = state().events.find(handle);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult refused = refuse_wait(*context); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (const CUresult refused = refuse_wait(*event); refused != CUDA_SUCCESS) {
        return refused;
    }
    std::shared_ptr<Moment> moment;
    {
        const Lock lock(event->mutex);
        moment = event->moment;
    }
    if (moment != nullptr && !moment->is_reached()) {
        await(*context, moment);
    }
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    return store_whole(nullptr, found->ordinal, resource, type);
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
    return get_resource(handle, resource, type);
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource, CUdevResourceType type) {
    return get_resource(handle, resource, type);
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* group_count, const CUdevResource* given,
                                             CUdevResource* remaining, unsigned flags, unsigned least) {
    SOFTGPU_READY();
    constexpr unsigned kIgnores = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
    constexpr unsigned kClusters = CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    SOFTGPU_NOT_NULL(group_count);
    SOFTGPU_NOT_NULL(given);
    if ((groups != nullptr && *group_count == 0) || (flags & (kIgnores | kClusters)) == (kIgnores | kClusters)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Processors whole;
    if (const CUresult error = processors_of(*given, whole); error != CUDA_SUCCESS) {
        return error;
    }
    const std::uint32_t total = whole.count();
    if (whole.is_whole == 0 || least > total) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    const Granularity fine = granularity((flags & kIgnores) != 0);
    const std::uint32_t size = std::min(total, std::max(fine.least, (least + fine.step - 1) / fine.step * fine.step));
    std::uint32_t count = total / size;
    if (groups == nullptr) {
        *group_count = count;
        return CUDA_SUCCESS;
    }
    count = std::min(count, *group_count);
    const std::vector<std::uint32_t> numbers = whole.numbers();
    const auto part = [&](std::uint32_t begin, std::uint32_t end) {
        Processors processors;
        processors.device = whole.device;
        std::for_each(numbers.begin() + begin, numbers.begin() + end, [&](auto number) { processors.add(number); });
        return resource_of(processors);
    };
    if (remaining != nullptr) {
        *remaining = part(count * size, total);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
        groups[i] = part(i * size, (i + 1) * size);
    }
    *group_count = count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc* result, CUdevResource* resources, unsigned count) {
    SOFTGPU_READY();
    if (result == nullptr || resources == nullptr || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto descriptor = std::make_shared<Descriptor>();
    for (unsigned i = 0; i < count; ++i) {
        Processors processors;
        if (const CUresult error = processors_of(resources[i], processors); error != CUDA_SUCCESS) {
            return error;
        }
        if (i != 0 && processors.device != descriptor->device) {
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        }
        descriptor->device = processors.device;
        for (std::size_t word = 0; word < std::size(processors.bits); ++word) {
            descriptor->processors.bits[word] |= processors.bits[word];
        }
    }
    descriptors().add(descriptor);
    *result = reinterpret_cast<CUdevResourceDesc>(descriptor.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* result, CUdevResourceDesc handle, CUdevice device, unsigned flags) {
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    if (result == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto context = std::make_shared<Context>();
    if (handle != nullptr) {
        const auto descriptor = descriptors().find(handle);
        if (descriptor == nullptr || descriptor->device != static_cast<std::uint32_t>(device)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        context->processors = descriptor->processors.numbers();
    } else {
        for (std::uint32_t number = 0; number < processor_count(); ++number) {
            context->processors.push_back(number);
        }
    }
    context->device = found;
    context->parent = retain_primary(*found);
    context->flags = context->parent->flags;
    context->api_version = 3020;
    context->open();
    {
        const Lock lock(context->parent->order_mutex);
        std::erase_if(context->parent->greens, [](const auto& green) { return green.expired(); });
        context->parent->greens.push_back(context);
    }
    state().contexts.add(context);
    *result = reinterpret_cast<CUgreenCtx>(context.get());
    return CUDA_SUCCESS;
}

// The work of its streams goes on.
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
    ContextPtr context;
    if (const CUresult error = find_context(handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    notify_context_end(*context);
    if (state().contexts.remove(context.get()) == nullptr) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    context->active = false;
    forget_context(*context);
    state().destroyed_contexts.add(context);
    release_primary(*context->parent);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* result, CUgreenCtx handle) {
    ContextPtr context;
    if (const CUresult error = find_context(handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    SOFTGPU_NOT_NULL(result);
    *result = reinterpret_cast<CUcontext>(context.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
    ContextPtr context;
    if (const CUresult error = find_context(handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    SOFTGPU_NOT_NULL(id);
    *id = context->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* result, CUgreenCtx handle, unsigned flags, int priority) {
    ContextPtr context;
    if (const CUresult error = find_context(handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    if (result == nullptr || flags != CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return make_stream(result, context, flags, priority);
}

CUresult CUDAAPI cuCtxRecordEvent(CUcontext handle, CUevent event) {
    return record(handle, event);
}
CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
    return record(handle, event);
}
CUresult CUDAAPI cuCtxWaitEvent(CUcontext handle, CUevent event) {
    return wait_for(handle, event);
}
CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
    return wait_for(handle, event);
}

}  // extern "C"
