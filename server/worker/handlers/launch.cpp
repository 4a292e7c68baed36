// Kernel launches and what is asked about them.

#include <vector>

#include "common/log.h"
#include "server/worker/serve.h"

namespace gpupool::worker::handlers {
namespace {

// The driver's view of a function handle, which may be a kernel's.
CUresult driver_function(Worker& worker, CUfunction& function) {
    const HandleTable::Lookup found = worker.handles.find(function);
    if (found.found != HandleTable::Found::yes || function == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    function = codec::from_wire<CUfunction>(found.driver);
    return CUDA_SUCCESS;
}

CUresult translate(Worker& worker, std::vector<CUlaunchAttribute>& attributes) {
    for (CUlaunchAttribute& attribute : attributes) {
        CUresult result = CUDA_SUCCESS;
        codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
            const EventState* state = worker.objects.event(event);
            if (state == nullptr) {
                result = CUDA_ERROR_INVALID_HANDLE;
            } else {
                event = state->driver;
            }
        });
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

CUlaunchConfig config_of(const LaunchShape& launch, std::vector<CUlaunchAttribute>& attributes, CUstream stream) {
    CUlaunchConfig config{};
    config.gridDimX = launch.grid_x;
    config.gridDimY = launch.grid_y;
    config.gridDimZ = launch.grid_z;
    config.blockDimX = launch.block_x;
    config.blockDimY = launch.block_y;
    config.blockDimZ = launch.block_z;
    config.sharedMemBytes = launch.shared_bytes;
    config.hStream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    return config;
}

// A failed launch is reported later, by another call: the log says what it was.
void note_failure(const Worker& worker, const LaunchShape& launch, CUfunction function, std::size_t argument_bytes,
                  std::size_t attribute_count, CUresult result) {
    const char* name = nullptr;
    driver::call(worker.api.cuFuncGetName, &name, function);
    log::info(
        "launch of {} failed with error {}: grid {}x{}x{}, block {}x{}x{}, {} bytes shared, {} of arguments, {} "
        "attributes",
        name == nullptr ? "a function" : name, static_cast<int>(result), launch.grid_x, launch.grid_y, launch.grid_z,
        launch.block_x, launch.block_y, launch.block_z, launch.shared_bytes, argument_bytes, attribute_count);
}

}  // namespace

Outcome gpLaunch(Worker& worker, Command& command, codec::Slots<calls::gpLaunch>& slots) {
    using Call = calls::gpLaunch;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = nullptr;
    if (auto waiting = await_turn(worker, command, slots.at<Call::stream>().value, stream)) {
        return std::move(*waiting);
    }
    LaunchShape& launch = slots.at<Call::launch>().object;
    std::vector<CUlaunchAttribute>& attributes = slots.at<Call::attributes>().object;
    auto& arguments = slots.at<Call::arguments>().object;
    if (slots.at<Call::launch>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUfunction client_function = launch.function;
    CUfunction function = client_function;
    if (result = driver_function(worker, function); result != CUDA_SUCCESS) {
        return result;
    }
    if (result = translate(worker, attributes); result != CUDA_SUCCESS) {
        return result;
    }
    if (result = worker.scheduler.enter(worker.context_of(command)); result != CUDA_SUCCESS) {
        return result;
    }
    std::size_t argument_bytes = arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &argument_bytes,
                     CU_LAUNCH_PARAM_END};
    void** const given = argument_bytes == 0 ? nullptr : extra;
    if (launch.cooperative != 0) {
        CUlaunchAttribute cooperative{};
        cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        cooperative.value.cooperative = 1;
        attributes.push_back(cooperative);
    }
    Tracer::Work work(worker.tracer, *stream, codec::TraceKind::kernel);
    work.name(client_function, function);
    if (launch.extended != 0 || launch.cooperative != 0) {
        const CUlaunchConfig config = config_of(launch, attributes, stream->driver);
        result = driver::call(worker.api.cuLaunchKernelEx, &config, function, static_cast<void**>(nullptr), given);
    } else {
        result = driver::call(worker.api.cuLaunchKernel, function, launch.grid_x, launch.grid_y, launch.grid_z,
                              launch.block_x, launch.block_y, launch.block_z, launch.shared_bytes, stream->driver,
                              static_cast<void**>(nullptr), given);
    }
    work.end(result);
    worker.scheduler.issued(*stream);
    if (result != CUDA_SUCCESS) {
        note_failure(worker, launch, function, argument_bytes, attributes.size(), result);
    }
    return result;
}

Outcome gpOccupancyClusters(Worker& worker, Command& command, codec::Slots<calls::gpOccupancyClusters>& slots) {
    using Call = calls::gpOccupancyClusters;
    LaunchShape& launch = slots.at<Call::launch>().object;
    std::vector<CUlaunchAttribute>& attributes = slots.at<Call::attributes>().object;
    CUfunction function = launch.function;
    if (const CUresult result = driver_function(worker, function); result != CUDA_SUCCESS) {
        return result;
    }
    if (const CUresult result = translate(worker, attributes); result != CUDA_SUCCESS) {
        return result;
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUlaunchConfig config = config_of(launch, attributes, nullptr);
    const bool potential = slots.at<Call::potential>().value != 0;
    return driver::call(
        potential ? worker.api.cuOccupancyMaxPotentialClusterSize : worker.api.cuOccupancyMaxActiveClusters,
        slots.at<Call::result>().value, function, &config);
}

}  // namespace gpupool::worker::handlers
