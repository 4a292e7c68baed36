// Launches and occupancy.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "server/softgpu/api/kernel_call.h"
#include "server/softgpu/api/settings.h"
#include "server/softgpu/api/texture_reference.h"
#include "server/softgpu/exec/grid.h"
#include "server/softgpu/exec/texture.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

// Usually one for each thread that runs blocks.
std::uint32_t processor_count() {
    return settings().processors != 0 ? settings().processors : HelperPool::instance().size() + 1;
}

int dynamic_shared_limit(const CompiledFunction& code, const std::map<int, int>& set) {
    int limit = 0;
    function_attribute(code, set, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit);
    return std::max(limit, kMaxStaticSharedBytes - static_cast<int>(code.shared_bytes));
}

int resident_blocks(const CompiledFunction& code, int threads, std::size_t dynamic_shared_bytes) {
    if (threads <= 0 || threads > static_cast<int>(code.max_threads)) {
        return 0;
    }
    const std::size_t shared = code.shared_bytes + dynamic_shared_bytes + 1024;
    const int by_threads = 2048 / ((threads + 31) / 32 * 32);
    const int by_shared = static_cast<int>(233472 / shared);
    return std::min({by_threads, by_shared, 32});
}

namespace {

CUresult code_of(FaultKind kind) {
    switch (kind) {
        case FaultKind::none:
        case FaultKind::stopped: return CUDA_SUCCESS;
        case FaultKind::illegal_address: return CUDA_ERROR_ILLEGAL_ADDRESS;
        case FaultKind::misaligned_address: return CUDA_ERROR_MISALIGNED_ADDRESS;
        case FaultKind::illegal_instruction: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
        case FaultKind::stack_overflow: return CUDA_ERROR_HARDWARE_STACK_ERROR;
        case FaultKind::assertion: return CUDA_ERROR_ASSERT;
        case FaultKind::out_of_memory: return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        case FaultKind::timeout: return CUDA_ERROR_LAUNCH_TIMEOUT;
        case FaultKind::trap:
        case FaultKind::deadlock: return CUDA_ERROR_LAUNCH_FAILED;
    }
    return CUDA_ERROR_LAUNCH_FAILED;
}

const char* name_of(FaultKind kind) {
    switch (kind) {
        case FaultKind::illegal_address: return "illegal address";
        case FaultKind::misaligned_address: return "misaligned address";
        case FaultKind::illegal_instruction: return "illegal instruction";
        case FaultKind::stack_overflow: return "stack overflow";
        case FaultKind::out_of_memory: return "out of host memory";
        case FaultKind::trap: return "trap";
        case FaultKind::deadlock: return "deadlock";
        case FaultKind::timeout: return "timeout";
        case FaultKind::none:
        case FaultKind::assertion:
        case FaultKind::stopped: break;
    }
    return "";
}

// Formats "illegal address at PTX line 7, address 0x10: no allocation is there"; omits what is unknown.
std::string describe(const Fault& fault) {
    std::string text = name_of(fault.kind);
    if (fault.line != 0) {
        text += " at PTX line " + std::to_string(fault.line);
    }
    const bool addressed = fault.kind == FaultKind::illegal_address || fault.kind == FaultKind::misaligned_address;
    if (addressed) {
        char address[32];
        std::snprintf(address, sizeof address, ", address 0x%llx", static_cast<unsigned long long>(fault.address));
        text += address;
    }
    if (fault.detail[0] != '\0') {
        text += std::string(": ") + fault.detail;
    }
    return text;
}

CUresult check(const KernelRequest& request, const Function& function, const std::map<int, int>& attributes) {
    const CompiledFunction& code = *function.code;
    constexpr std::uint64_t kLimits[6] = {2147483647, 65535, 65535, 1024, 1024, 64};
    for (int i = 0; i < 3; ++i) {
        if (request.grid[i] == 0 || request.grid[i] > kLimits[i]) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (request.block[i] == 0 || request.block[i] > kLimits[3 + i]) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (code.required_threads[0] != 0 && request.block[i] != code.required_threads[i]) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    const std::uint64_t threads = std::uint64_t{request.block[0]} * request.block[1] * request.block[2];
    if (threads > 1024) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (threads > code.max_threads) {
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    if (request.shared_bytes > static_cast<unsigned>(dynamic_shared_limit(code, attributes))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (request.cooperative) {
        const std::uint64_t blocks = std::uint64_t{request.grid[0]} * request.grid[1] * request.grid[2];
        const int per_sm = resident_blocks(code, static_cast<int>(threads), request.shared_bytes);
        if (blocks > std::uint64_t{processor_count()} * static_cast<unsigned>(per_sm)) {
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        }
    }
    return CUDA_SUCCESS;
}

constexpr unsigned kPortableClusterBlocks = 8;

// Uses the launch's cluster size, or the one that the kernel was compiled for. If both are given they must agree.
CUresult choose_cluster(const KernelRequest& request, const CompiledFunction& code,
                        const std::map<int, int>& attributes, unsigned (&cluster)[3]) {
    for (int i = 0; i < 3; ++i) {
        const unsigned asked = request.cluster[i], required = code.required_cluster[i];
        if (asked != 0 && required != 0 && asked != required) {
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        }
        cluster[i] = asked != 0 ? asked : required != 0 ? required : 1;
        if (cluster[i] > kMaxClusterBlocks) {
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        }
        if (request.grid[i] % cluster[i] != 0) {
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        }
    }
    const auto found = attributes.find(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
    const bool larger = found != attributes.end() && found->second != 0;
    const unsigned blocks = cluster[0] * cluster[1] * cluster[2];
    return blocks > (larger ? kMaxClusterBlocks : kPortableClusterBlocks) ? CUDA_ERROR_INVALID_CLUSTER_SIZE
                                                                          : CUDA_SUCCESS;
}

// Assembles the parameters as the kernel sees them, from either form of a launch.
CUresult gather_params(const KernelRequest& request, const CompiledFunction& code, std::vector<std::uint8_t>& buffer) {
    buffer.assign(code.param_bytes, 0);
    if (request.extra != nullptr) {
        if (request.params != nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const void* from = nullptr;
        std::size_t bytes = 0;
        for (void** at = request.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
            if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) {
                from = at[1];
            } else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) {
                bytes = *static_cast<std::size_t*>(at[1]);
            } else {
                return CUDA_ERROR_INVALID_VALUE;
            }
        }
        if (bytes < code.param_bytes || (bytes != 0 && from == nullptr)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!buffer.empty()) {
            std::memcpy(buffer.data(), from, buffer.size());
        }
        return CUDA_SUCCESS;
    }
    if (code.params.empty()) {
        return CUDA_SUCCESS;
    }
    SOFTGPU_NOT_NULL(request.params);
    for (std::size_t i = 0; i < code.params.size(); ++i) {
        SOFTGPU_NOT_NULL(request.params[i]);
        std::memcpy(buffer.data() + code.params[i].offset_bytes, request.params[i], code.params[i].size_bytes);
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult make_kernel_call(const KernelRequest& request, KernelCall& call) {
    if (const CUresult error = find_function(request.function, call.function); error != CUDA_SUCCESS) {
        return error;
    }
    const Function& function = *call.function;
    if (const std::string& refusal = function.code->refusal; !refusal.empty()) {
        std::fprintf(stderr, "gpupool software GPU: kernel '%s' cannot run: PTX %s\n", function.code->name.c_str(),
                     refusal.c_str());
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    std::map<int, int> attributes;
    {
        const Lock lock(call.function->mutex);
        attributes = call.function->attributes;
    }
    if (const CUresult error = check(request, function, attributes); error != CUDA_SUCCESS) {
        return error;
    }
    std::vector<std::uint8_t> params;
    if (const CUresult error = gather_params(request, *function.code, params); error != CUDA_SUCCESS) {
        return error;
    }
    call.module = function.module->shared_from_this();
    call.references.clear();
    for (const auto& reference : call.module->references) {
        call.references.push_back(reference->object());
    }
    call.params.assign((params.size() + 7) / 8 + 1, 0);
    if (!params.empty()) {
        std::memcpy(call.params.data(), params.data(), params.size());
    }
    std::copy(request.grid, request.grid + 3, call.grid);
    std::copy(request.block, request.block + 3, call.block);
    call.shared_bytes = request.shared_bytes;
    call.cooperative = request.cooperative;
    if (const CUresult error = choose_cluster(request, *function.code, attributes, call.cluster);
        error != CUDA_SUCCESS) {
        return error;
    }
    return CUDA_SUCCESS;
}

CUresult run_kernel(const KernelCall& call, Context& context, std::uint32_t texture_generation) {
    const CompiledFunction& code = *call.function->code;
    LaunchState launched;
    launched.entry = &code;
    launched.functions = &call.module->code->functions;
    launched.references = call.references.data();
    launched.params = reinterpret_cast<const std::uint8_t*>(call.params.data());
    std::copy(call.grid, call.grid + 3, launched.grid);
    std::copy(call.block, call.block + 3, launched.block);
    std::copy(call.cluster, call.cluster + 3, launched.cluster);
    launched.dynamic_shared_bytes = call.shared_bytes;
    std::size_t stack = code.stack_bytes;
    {
        Context& owner = context.owner();
        const Lock lock(owner.order_mutex);
        launched.device = std::uint64_t{1} << owner.device->ordinal;
        launched.reachable = launched.device;
        for (const auto& peer : owner.peers) {
            launched.reachable |= std::uint64_t{1} << peer.first;
        }
    }
    if (code.may_recurse) {
        Context& owner = context.owner();
        const Lock lock(owner.order_mutex);
        stack = std::max<std::size_t>(owner.limits[CU_LIMIT_STACK_SIZE], stack);
    }
    launched.local_bytes_per_lane = static_cast<std::uint32_t>((stack + 15) / 16 * 16);
    launched.grid_id = state().next_id.fetch_add(1);
    launched.texture_generation = texture_generation;
    launched.sm_count = processor_count();
    Multiprocessors on{nullptr, settings().processors};
    if (!call.processors.empty()) {
        on = {call.processors.data(), static_cast<std::uint32_t>(call.processors.size())};
    }
    std::vector<std::uint64_t> workspace;
    if (call.cooperative) {
        workspace.assign(64, 0);
        launched.grid_workspace = reinterpret_cast<std::uint64_t>(workspace.data());
        AddressSpace::instance().add(launched.grid_workspace, workspace.size() * 8);
    }
    const auto begin = Clock::now();
    if (settings().kernel_limit.count() != 0) {
        launched.deadline = begin + settings().kernel_limit;
    }
    const Fault fault = Grid::run(launched, call.cooperative, context.stop, on);
    if (fault.kind == FaultKind::none) {
        idle_until(begin + settings().kernel_duration, context.stop);
    }
    if (call.cooperative) {
        AddressSpace::instance().remove(launched.grid_workspace, workspace.size() * 8);
    }
    std::fflush(stdout);  // device printf
    // A failed assertion has printed its own message.
    if (fault.kind != FaultKind::none && fault.kind != FaultKind::stopped && fault.kind != FaultKind::assertion) {
        std::fprintf(stderr, "gpupool software GPU: kernel '%s': %s\n", code.name.c_str(), describe(fault).c_str());
    }
    return code_of(fault.kind);
}

namespace {

// Do all blocks of a cooperative launch fit on the processors of its green context?
CUresult check_processors(const KernelCall& call) {
    if (!call.cooperative || call.processors.empty()) {
        return CUDA_SUCCESS;
    }
    const std::uint64_t blocks = std::uint64_t{call.grid[0]} * call.grid[1] * call.grid[2];
    const int threads = static_cast<int>(call.block[0] * call.block[1] * call.block[2]);
    const auto each = static_cast<unsigned>(resident_blocks(*call.function->code, threads, call.shared_bytes));
    return blocks > std::uint64_t{call.processors.size()} * each ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
                                                                 : CUDA_SUCCESS;
}

CUresult launch(const KernelRequest& request, CUstream handle) {
    SOFTGPU_READY();
    SOFTGPU_STREAM(handle, stream);
    auto call = std::make_shared<KernelCall>();
    if (const CUresult error = make_kernel_call(request, *call); error != CUDA_SUCCESS) {
        return error;
    }
    Context& context = stream->context;
    if (call->module->context.get() != &context.owner()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    call->processors = context.processors;
    if (const CUresult error = check_processors(*call); error != CUDA_SUCCESS) {
        return error;
    }
    CUresult result;
    if (captured(
            stream, [&] { return kernel_payload(std::move(*call)); }, result)) {
        return result;
    }
    const std::uint32_t textures = TextureTable::instance().generation();
    if (!context.owner().make_local_room(call->function->code->local_bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const SharedLock submitting(context.submission_mutex);
    submit_ordered(stream, [call, &context, textures] { return run_kernel(*call, context, textures); });
    return CUDA_SUCCESS;
}

// The largest dynamic shared memory that the function's attribute permits.
std::size_t permitted_shared_bytes(Function& function) {
    int limit = 0;
    const Lock lock(function.mutex);
    function_attribute(*function.code, function.attributes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit);
    return static_cast<std::size_t>(std::max(0, limit));
}

int permitted_blocks(Function& function, int threads, std::size_t shared_bytes) {
    return shared_bytes > permitted_shared_bytes(function) ? 0 : resident_blocks(*function.code, threads, shared_bytes);
}

CUresult max_active(int* blocks, CUfunction handle, int threads, std::size_t shared_bytes, unsigned flags) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(blocks);
    std::shared_ptr<Function> function;
    if (const CUresult error = find_function(handle, function); error != CUDA_SUCCESS) {
        return error;
    }
    if (threads <= 0 || (flags & ~static_cast<unsigned>(CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *blocks = permitted_blocks(*function, threads, shared_bytes);
    return CUDA_SUCCESS;
}

CUresult potential_block(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of,
                         std::size_t shared_bytes, int limit, unsigned flags) {
    SOFTGPU_READY();
    const bool known = (flags & ~static_cast<unsigned>(CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)) == 0;
    if (grid == nullptr || block == nullptr || !known) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Function> function;
    if (const CUresult error = find_function(handle, function); error != CUDA_SUCCESS) {
        return error;
    }
    const int most = limit > 0 ? std::min<int>(limit, static_cast<int>(function->code->max_threads))
                               : static_cast<int>(function->code->max_threads);
    int best = 0, best_threads = 0;
    for (int threads = most / 32 * 32 == 0 ? most : most / 32 * 32; threads > 0; threads -= 32) {
        const std::size_t shared = shared_of != nullptr ? shared_of(threads) : shared_bytes;
        const int blocks = permitted_blocks(*function, threads, shared);
        if (blocks * threads > best_threads) {
            best_threads = blocks * threads, best = threads;
        }
    }
    if (best == 0) {
        *block = *grid = 0;
        return CUDA_SUCCESS;
    }
    const std::size_t shared = shared_of != nullptr ? shared_of(best) : shared_bytes;
    *block = best;
    *grid = resident_blocks(*function->code, best, shared) * static_cast<int>(processor_count());
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared_bytes, CUstream stream, void** params, void** extra) {
    return launch({function, {gx, gy, gz}, {bx, by, bz}, shared_bytes, params, extra, false}, stream);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                           unsigned by, unsigned bz, unsigned shared_bytes, CUstream stream,
                                           void** params) {
    return launch({function, {gx, gy, gz}, {bx, by, bz}, shared_bytes, params, nullptr, true}, stream);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(config);
    KernelRequest request{function,
                          {config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes,
                          params,
                          extra,
                          false};
    if (config->numAttrs != 0 && config->attrs == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<CUevent> recorded;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const CUlaunchAttribute& attribute = config->attrs[i];
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            request.cooperative = attribute.value.cooperative != 0;
        }
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& cluster = attribute.value.clusterDim;
            if (cluster.x == 0 || cluster.y == 0 || cluster.z == 0) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            request.cluster[0] = cluster.x, request.cluster[1] = cluster.y, request.cluster[2] = cluster.z;
        }
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            recorded.push_back(attribute.value.launchCompletionEvent.event);
        } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
            recorded.push_back(attribute.value.programmaticEvent.event);
        }
    }
    for (const CUevent event : recorded) {
        const auto known = state().events.find(event);
        if (known == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if ((known->flags & CU_EVENT_DISABLE_TIMING) == 0) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    CUresult result = launch(request, config->hStream);
    // Recorded at the kernel's end, the latest time at which they may be complete.
    for (std::size_t i = 0; i < recorded.size() && result == CUDA_SUCCESS; ++i) {
        result = record_event(recorded[i], config->hStream, false);
    }
    return result;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                             size_t shared_bytes) {
    return max_active(blocks, function, threads, shared_bytes, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads,
                                                                      size_t shared_bytes, unsigned flags) {
    return max_active(blocks, function, threads, shared_bytes, flags);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function,
                                                  CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit) {
    return potential_block(grid, block, function, shared_of, shared_bytes, limit, CU_OCCUPANCY_DEFAULT);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function,
                                                           CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit,
                                                           unsigned flags) {
    return potential_block(grid, block, function, shared_of, shared_bytes, limit, flags);
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle, const CUlaunchConfig* config) {
    SOFTGPU_READY();
    if (size == nullptr || config == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Function> function;
    if (const CUresult error = find_function(handle, function); error != CUDA_SUCCESS) {
        return error;
    }
    const Lock lock(function->mutex);
    const auto found = function->attributes.find(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
    const bool larger = found != function->attributes.end() && found->second != 0;
    *size = static_cast<int>(larger ? kMaxClusterBlocks : kPortableClusterBlocks);
    return CUDA_SUCCESS;
}

// The blocks of a cluster run on one processor here, so every block count that fits is possible.
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* count, CUfunction handle, const CUlaunchConfig* config) {
    SOFTGPU_READY();
    if (count == nullptr || config == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Function> function;
    if (const CUresult error = find_function(handle, function); error != CUDA_SUCCESS) {
        return error;
    }
    KernelRequest request{handle, {config->gridDimX, config->gridDimY, config->gridDimZ}};
    bool has_clusters = function->code->required_cluster[0] != 0;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            continue;
        }
        has_clusters = true;
        const auto& asked = config->attrs[i].value.clusterDim;
        request.cluster[0] = asked.x, request.cluster[1] = asked.y, request.cluster[2] = asked.z;
    }
    std::map<int, int> attributes;
    {
        const Lock lock(function->mutex);
        attributes = function->attributes;
    }
    unsigned cluster[3];
    if (const CUresult error = choose_cluster(request, *function->code, attributes, cluster); error != CUDA_SUCCESS) {
        return error;
    }
    const auto threads = static_cast<int>(config->blockDimX * config->blockDimY * config->blockDimZ);
    const int blocks = resident_blocks(*function->code, threads, config->sharedMemBytes);
    const auto size = static_cast<int>(cluster[0] * cluster[1] * cluster[2]);
    *count = !has_clusters ? 0 : std::max(blocks > 0 ? 1 : 0, blocks * static_cast<int>(processor_count()) / size);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int threads) {
    SOFTGPU_READY();
    const bool fit = blocks > 0 && blocks <= 32 && threads > 0 && threads <= 1024 && blocks * threads <= 2048;
    if (bytes == nullptr || !fit) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<Function> function;
    if (const CUresult error = find_function(handle, function); error != CUDA_SUCCESS) {
        return error;
    }
    // The driver does not count here what it reserves in each block.
    const std::size_t taken = function->code->shared_bytes, share = 233472U / static_cast<unsigned>(blocks);
    *bytes = share > taken ? std::min(share - taken, permitted_shared_bytes(*function)) : 0;
    return CUDA_SUCCESS;
}

}  // extern "C"
