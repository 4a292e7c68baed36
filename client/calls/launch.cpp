// Kernel launches. The client packs the parameters by the function's layout, checks what it can, and sends the launch
// without waiting.

#include <cstring>
#include <unordered_map>
#include <vector>

#include "client/calls/handlers.h"
#include "client/calls/launch_arguments.h"
#include "client/calls/launch_config.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"
#include "client/core/images/code.h"
#include "common/mutex.h"

namespace gpupool::client::entry {
namespace {

bool is_cooperative(const LaunchShape& shape, const CUlaunchAttribute* attributes, unsigned count) {
    bool cooperative = shape.cooperative != 0;
    for (unsigned i = 0; i < count; ++i) {
        cooperative = cooperative ||
                      (attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attributes[i].value.cooperative != 0);
    }
    return cooperative;
}

// The multiprocessors that run the work of a stream.
std::uint64_t multiprocessors(const Device& device, CUstream stream) {
    StreamInfo info;
    const bool of_green = find_stream(stream, info) == CUDA_SUCCESS && info.context->green();
    return of_green ? info.context->multiprocessors
                    : static_cast<std::uint64_t>(device_attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
}

// The blocks of a cooperative launch wait for each other, so all must fit on the device at once.
CUresult check_cooperative(const Device& device, const LaunchShape& launch, CUstream stream) {
    const std::uint64_t threads = std::uint64_t{launch.block_x} * launch.block_y * launch.block_z;
    int blocks = 0;
    const CUresult result = entry::cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, launch.function, static_cast<int>(threads), launch.shared_bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const std::uint64_t fitting = static_cast<std::uint64_t>(blocks) * multiprocessors(device, stream);
    // No overflow: the factors have up to 31, 16 and 16 bits.
    const std::uint64_t grid = std::uint64_t{launch.grid_x} * launch.grid_y * launch.grid_z;
    return grid > fitting ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

// Calls `use` for each event that a launch with these attributes records.
template <class Use>
void each_event(const CUlaunchAttribute* attributes, unsigned count, Use use) {
    for (unsigned i = 0; i < count; ++i) {
        CUlaunchAttribute attribute = attributes[i];
        codec::StructTraits<CUlaunchAttribute>::visit(attribute, use);
    }
}

// Checks that the launch may record its events, and marks them: the worker does not report the completion of such a
// record by itself.
CUresult prepare_events(const CUlaunchAttribute* attributes, unsigned count) {
    CUresult result = CUDA_SUCCESS;
    each_event(attributes, count, [&](CUevent handle) {
        const std::shared_ptr<Event> event = this_session().events.find(handle);
        if (event == nullptr) {
            result = CUDA_ERROR_INVALID_HANDLE;
        } else if ((event->flags & CU_EVENT_DISABLE_TIMING) == 0) {
            result = CUDA_ERROR_NOT_SUPPORTED;
        } else {
            event->launched_with = true;
        }
    });
    return result;
}

void note_recorded(const CUlaunchAttribute* attributes, unsigned count, CUstream stream) {
    Captures& captures = this_session().captures;
    if (captures.any() || captures.any_events()) {
        each_event(attributes, count, [&](CUevent event) { captures.recorded(event, stream_key(stream)); });
    }
}

// Makes room for the function's local memory if no function before it has needed as much. A launch does that by itself,
// but it is sent without waiting, and a program must learn at once that its quota does not allow it. Later launches
// need as much room at most: what the client knows of the stack's limit is never more than there is.
CUresult make_local_room(ContextState& context, const FunctionAttributes::OnDevice& function) {
    constexpr int kAlwaysThere = 1024;  // in a new context
    const int bytes = function.get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    if (bytes <= kAlwaysThere || this_session().captures.any()) [[likely]] {
        return CUDA_SUCCESS;
    }
    std::atomic<std::size_t>& known = context.owner().limits[CU_LIMIT_STACK_SIZE];
    std::size_t now = known.load(std::memory_order_relaxed);
    const auto wanted = static_cast<std::size_t>(bytes);
    if (now == ContextState::kUnknownLimit || now < wanted) {
        if (const CUresult result = remote<calls::cuCtxGetLimit>(&now, CU_LIMIT_STACK_SIZE); result != CUDA_SUCCESS) {
            return result;
        }
        known.store(now, std::memory_order_relaxed);
    }
    return now >= wanted ? CUDA_SUCCESS : entry::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, wanted);
}

CUresult launch(LaunchShape shape, const CUlaunchAttribute* attributes, unsigned attribute_count, CUstream stream,
                void** kernelParams, void** extra) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    LaunchTarget target;
    if (result = find_launch_target(shape.function, *context, target); result != CUDA_SUCCESS) {
        return result;
    }
    shape.function = target.function;
    const Device& device = this_session().devices.devices[static_cast<std::size_t>(context->device)];
    if (result = check_limits(device, *target.attributes, shape); result != CUDA_SUCCESS) {
        return result;
    }
    if (result = make_local_room(*context, *target.attributes); result != CUDA_SUCCESS) {
        return result;
    }
    if (is_cooperative(shape, attributes, attribute_count)) {
        if (result = check_cooperative(device, shape, stream); result != CUDA_SUCCESS) {
            return result;
        }
    }
    ArgumentBlock arguments;
    if (result = arguments.pack(*target.info, kernelParams, extra); result != CUDA_SUCCESS) {
        return result;
    }
    if (result = prepare_events(attributes, attribute_count); result != CUDA_SUCCESS) {
        return result;
    }
    arguments.give_to_gpu(this_session());
    result = remote<calls::gpLaunch>(&shape, attributes, attribute_count, arguments.data(), arguments.bytes(), stream);
    if (result == CUDA_SUCCESS && attribute_count != 0) {
        note_recorded(attributes, attribute_count, stream);
    }
    return result;
}

// The launch API from before CUDA 4: the program sets state on the function, then launches it.
struct LegacyState {
    unsigned block_x = 1, block_y = 1, block_z = 1, shared_bytes = 0;
    std::vector<unsigned char> arguments;
    std::size_t argument_bytes = 0;
};
struct LegacyStates {
    static constexpr std::size_t kFew = 64;

    Mutex mutex;
    std::unordered_map<CUfunction, LegacyState> states GP_GUARDED_BY(mutex);
    std::size_t tidy_at GP_GUARDED_BY(mutex) = kFew;  // with so many, those of functions that are gone are forgotten
};
LegacyStates& legacy_states() {
    static auto& instance = *new LegacyStates;
    return instance;
}

template <class Change>
CUresult change_legacy(CUfunction function, Change change) {
    if (function_info(function) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    LegacyStates& all = legacy_states();
    const Lock lock(all.mutex);
    if (all.states.size() >= all.tidy_at) {
        std::erase_if(all.states, [](const auto& entry) { return function_info(entry.first) == nullptr; });
        all.tidy_at = 2 * all.states.size() + LegacyStates::kFew;
    }
    return change(all.states[function]);
}

constexpr std::size_t kMaxArgumentBytes = 32764;  // the most that a kernel's parameters may take
constexpr std::int64_t kMaxBlockThreads = 1024;
constexpr unsigned kMaxSharedBytes = 227u << 10;  // of compute capability 9.0

CUresult set_argument(CUfunction function, int offset, const void* value, std::size_t bytes) {
    return change_legacy(function, [&](LegacyState& state) {
        if (offset < 0 || static_cast<std::size_t>(offset) + bytes > kMaxArgumentBytes || value == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::size_t end = static_cast<std::size_t>(offset) + bytes;
        if (state.arguments.size() < end) {
            state.arguments.resize(end);
        }
        std::memcpy(state.arguments.data() + offset, value, bytes);
        return CUDA_SUCCESS;
    });
}

CUresult launch_legacy(CUfunction function, int width, int height, CUstream stream) {
    LegacyState state;
    const CUresult result = change_legacy(function, [&](LegacyState& kept) {
        state = kept;
        return CUDA_SUCCESS;
    });
    if (result != CUDA_SUCCESS || width <= 0 || height <= 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    std::size_t bytes = std::max(state.argument_bytes, state.arguments.size());
    state.arguments.resize(bytes);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, state.arguments.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return launch({function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1, state.block_x,
                   state.block_y, state.block_z, state.shared_bytes, 0, 0},
                  nullptr, 0, stream, nullptr, bytes == 0 ? nullptr : extra);
}

struct DeviceLaunch {
    const CUDA_LAUNCH_PARAMS* params = nullptr;
    ContextState* context = nullptr;
};

// Finds the contexts of the launches: those of their streams, of which each has a device of its own.
CUresult check_device_launches(const CUDA_LAUNCH_PARAMS* list, unsigned count, std::vector<DeviceLaunch>& launches) {
    Session& s = this_session();
    for (unsigned i = 0; i < count; ++i) {
        StreamInfo info;
        if (list[i].function == nullptr || Streams::is_special(list[i].hStream) ||
            !s.streams.find(list[i].hStream, info)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        for (const DeviceLaunch& other : launches) {
            if (other.context->device == info.context->device) {
                return CUDA_ERROR_INVALID_DEVICE;
            }
        }
        if (s.captures.any()) {
            if (const CUresult refused = s.captures.refuse_if_capturing(stream_key(list[i].hStream));
                refused != CUDA_SUCCESS) {
                return refused;
            }
        }
        launches.push_back({&list[i], info.context});
    }
    return CUDA_SUCCESS;
}

// Work that the streams get from now on waits for what they all have got until now.
CUresult join_streams(const std::vector<DeviceLaunch>& launches) {
    std::vector<CUevent> events;
    CUresult result = CUDA_SUCCESS;
    for (const DeviceLaunch& one : launches) {
        const CurrentContext current(one.context);
        CUevent event = nullptr;
        result = result != CUDA_SUCCESS ? result : entry::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        result = result != CUDA_SUCCESS ? result : entry::cuEventRecord(event, one.params->hStream);
        if (event != nullptr) {
            events.push_back(event);
        }
    }
    for (const DeviceLaunch& one : launches) {
        const CurrentContext current(one.context);
        for (const CUevent event : events) {
            result = result != CUDA_SUCCESS ? result : entry::cuStreamWaitEvent(one.params->hStream, event, 0);
        }
    }
    for (std::size_t i = 0; i < events.size(); ++i) {
        const CurrentContext current(launches[i].context);
        (void)entry::cuEventDestroy_v2(events[i]);
    }
    return result;
}

}  // namespace

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList, unsigned numDevices,
                                              unsigned flags) {
    constexpr unsigned kFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    if (launchParamsList == nullptr || (flags & ~kFlags) != 0 || numDevices == 0 ||
        numDevices > this_session().devices.devices.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<DeviceLaunch> launches;
    CUresult result = check_device_launches(launchParamsList, numDevices, launches);
    const bool several = numDevices > 1;
    if (result == CUDA_SUCCESS && several && (flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC) == 0) {
        result = join_streams(launches);
    }
    for (const DeviceLaunch& one : launches) {
        const CUDA_LAUNCH_PARAMS& p = *one.params;
        const CurrentContext current(one.context);
        result = result != CUDA_SUCCESS ? result
                                        : launch({p.function, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX,
                                                  p.blockDimY, p.blockDimZ, p.sharedMemBytes, 1, 0},
                                                 nullptr, 0, p.hStream, p.kernelParams, nullptr);
    }
    if (result == CUDA_SUCCESS && several && (flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC) == 0) {
        result = join_streams(launches);
    }
    return result;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gridDimX, unsigned gridDimY, unsigned gridDimZ, unsigned blockDimX,
                        unsigned blockDimY, unsigned blockDimZ, unsigned sharedMemBytes, CUstream hStream,
                        void** kernelParams, void** extra) {
    return launch({f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, 0, 0}, nullptr, 0,
                  hStream, kernelParams, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gridDimX, unsigned gridDimY, unsigned gridDimZ,
                                   unsigned blockDimX, unsigned blockDimY, unsigned blockDimZ, unsigned sharedMemBytes,
                                   CUstream hStream, void** kernelParams) {
    return launch({f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes, 1, 0}, nullptr, 0,
                  hStream, kernelParams, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams, void** extra) {
    if (config == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_attributes(*config); result != CUDA_SUCCESS) {
        return result;
    }
    return launch(shape_of(*config, f), config->attrs, config->numAttrs, config->hStream, kernelParams, extra);
}

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
    return change_legacy(hfunc, [&](LegacyState& state) {
        if (x <= 0 || y <= 0 || z <= 0 || std::int64_t{x} * y * z > kMaxBlockThreads) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        state.block_x = static_cast<unsigned>(x);
        state.block_y = static_cast<unsigned>(y);
        state.block_z = static_cast<unsigned>(z);
        return CUDA_SUCCESS;
    });
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned bytes) {
    return change_legacy(hfunc, [&](LegacyState& state) {
        if (bytes > kMaxSharedBytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        state.shared_bytes = bytes;
        return CUDA_SUCCESS;
    });
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned numbytes) {
    return change_legacy(hfunc, [&](LegacyState& state) {
        if (numbytes > kMaxArgumentBytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        state.argument_bytes = numbytes;
        return CUDA_SUCCESS;
    });
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned value) {
    return set_argument(hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
    return set_argument(hfunc, offset, &value, sizeof value);
}
CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned numbytes) {
    return set_argument(hfunc, offset, ptr, numbytes);
}

CUresult cuLaunch(CUfunction f) {
    return launch_legacy(f, 1, 1, nullptr);
}
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
    return launch_legacy(f, grid_width, grid_height, nullptr);
}
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
    return launch_legacy(f, grid_width, grid_height, hStream);
}

}  // namespace gpupool::client::entry
