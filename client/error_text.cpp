#include "client/error_text.h"

#include <array>
#include <atomic>
#include <deque>
#include <string>

#include "common/mutex.h"

namespace gpupool::client::error_text {
namespace {

struct Text {
    CUresult code;
    const char* name;
    const char* description;
};

// Every value of CUDA 13.0's cuda.h, with the exact texts of driver 580, because programs print and compare them.
// docs/driver-facts.md says how they were read.
#define GPUPOOL_TEXT(code, description) \
    Text { code, #code, description }
constexpr std::array kTexts = {
    GPUPOOL_TEXT(CUDA_SUCCESS, "no error"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    GPUPOOL_TEXT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    GPUPOOL_TEXT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    GPUPOOL_TEXT(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool"),
    GPUPOOL_TEXT(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized: call cudaProfilerInitialize()"),
    GPUPOOL_TEXT(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    GPUPOOL_TEXT(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    GPUPOOL_TEXT(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    GPUPOOL_TEXT(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "API call is not supported in the installed CUDA driver"),
    GPUPOOL_TEXT(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    GPUPOOL_TEXT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    GPUPOOL_TEXT(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    GPUPOOL_TEXT(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    GPUPOOL_TEXT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    GPUPOOL_TEXT(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    GPUPOOL_TEXT(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    GPUPOOL_TEXT(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    GPUPOOL_TEXT(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    GPUPOOL_TEXT(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"),
    GPUPOOL_TEXT(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    GPUPOOL_TEXT(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    GPUPOOL_TEXT(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"),
    GPUPOOL_TEXT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"),
    GPUPOOL_TEXT(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    GPUPOOL_TEXT(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"),
    GPUPOOL_TEXT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    GPUPOOL_TEXT(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"),
    GPUPOOL_TEXT(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"),
    GPUPOOL_TEXT(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
                 "the provided PTX contains unsupported call to cudaDeviceSynchronize"),
    GPUPOOL_TEXT(CUDA_ERROR_CONTAINED, "Invalid access of peer GPU memory over nvlink or a hardware error"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"),
    GPUPOOL_TEXT(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    GPUPOOL_TEXT(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    GPUPOOL_TEXT(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"),
    GPUPOOL_TEXT(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    GPUPOOL_TEXT(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    GPUPOOL_TEXT(CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_READY, "device not ready"),
    GPUPOOL_TEXT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    GPUPOOL_TEXT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    GPUPOOL_TEXT(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    GPUPOOL_TEXT(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"),
    GPUPOOL_TEXT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    GPUPOOL_TEXT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    GPUPOOL_TEXT(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    GPUPOOL_TEXT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    GPUPOOL_TEXT(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    GPUPOOL_TEXT(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    GPUPOOL_TEXT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                 "part or all of the requested memory range is already mapped"),
    GPUPOOL_TEXT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    GPUPOOL_TEXT(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    GPUPOOL_TEXT(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    GPUPOOL_TEXT(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    GPUPOOL_TEXT(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    GPUPOOL_TEXT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    GPUPOOL_TEXT(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    GPUPOOL_TEXT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    GPUPOOL_TEXT(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    GPUPOOL_TEXT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    GPUPOOL_TEXT(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW"),
    GPUPOOL_TEXT(CUDA_ERROR_MPS_CONNECTION_FAILED,
                 "MPS client failed to connect to the MPS control daemon or the MPS server"),
    GPUPOOL_TEXT(CUDA_ERROR_MPS_RPC_FAILURE,
                 "the remote procedural call between the MPS server and the MPS client failed"),
    GPUPOOL_TEXT(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests"),
    GPUPOOL_TEXT(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
                 "the hardware resources required to create MPS client have been exhausted"),
    GPUPOOL_TEXT(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
                 "the hardware resources required to support device connections have been exhausted"),
    GPUPOOL_TEXT(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"),
    GPUPOOL_TEXT(CUDA_ERROR_CDP_NOT_SUPPORTED,
                 "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"),
    GPUPOOL_TEXT(CUDA_ERROR_CDP_VERSION_MISMATCH,
                 "unsupported interaction between different versions of CUDA Dynamic Parallelism"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                 "operation would make the legacy stream depend on a capturing blocking stream"),
    GPUPOOL_TEXT(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    GPUPOOL_TEXT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                 "attempt to terminate a thread-local capture sequence from another thread"),
    GPUPOOL_TEXT(CUDA_ERROR_TIMEOUT, "wait operation timed out"),
    GPUPOOL_TEXT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "the graph update was not performed because it included changes which violated constraints specific "
                 "to instantiated graph update"),
    GPUPOOL_TEXT(CUDA_ERROR_EXTERNAL_DEVICE, "an async error has occured in external entity outside of CUDA"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration"),
    GPUPOOL_TEXT(CUDA_ERROR_FUNCTION_NOT_LOADED,
                 "the function handle is not loaded when calling an API that requires a loaded function"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
                 "one or more resources passed in are not valid resource types for the operation"),
    GPUPOOL_TEXT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                 "one or more resources are insufficient or non-applicable for the operation"),
    GPUPOOL_TEXT(CUDA_ERROR_KEY_ROTATION, "an error happened during the key rotation sequence"),
    GPUPOOL_TEXT(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef GPUPOOL_TEXT

// CUDA_ERROR_UNKNOWN is the last value of CUresult, so the enumeration is only sure to hold ten bits.
constexpr std::size_t kMaxCode = 1024;
static_assert(CUDA_ERROR_UNKNOWN < kMaxCode && CUDA_ERROR_UNKNOWN >= kMaxCode / 2);
constexpr std::size_t kMaxTextBytes = 512;
constexpr std::size_t kMaxLearnedBytes = 1024 * 1024;

struct Entry {
    std::atomic<const char*> name{nullptr};
    std::atomic<const char*> description{nullptr};
};

std::array<Entry, kMaxCode>& entries() noexcept {
    // Filled on first use: the first lookup may happen before this library's static objects are constructed.
    static std::array<Entry, kMaxCode>* const table = [] {
        static std::array<Entry, kMaxCode> storage;
        for (const Text& text : kTexts) {
            storage[text.code].name.store(text.name, std::memory_order_relaxed);
            storage[text.code].description.store(text.description, std::memory_order_relaxed);
        }
        return &storage;
    }();
    return *table;
}

const Entry* entry(CUresult code) noexcept {
    const auto index = static_cast<unsigned>(code);
    return index < kMaxCode ? &entries()[index] : nullptr;
}

Mutex learning;
std::size_t learned_bytes GP_GUARDED_BY(learning) = 0;  // of all texts that replace() keeps

// Keeps every text for ever: the application may hold the pointer.
bool replace(std::atomic<const char*>& text, std::string_view with) GP_REQUIRES(learning) {
    const char* old = text.load(std::memory_order_relaxed);
    if (with.empty() || (old != nullptr && with == old)) {
        return true;
    }
    if (learned_bytes + with.size() + 1 > kMaxLearnedBytes) {
        return false;
    }
    learned_bytes += with.size() + 1;
    // Never destroyed: exit handlers may still ask for a text.
    static auto* const kept = new std::deque<std::string>;
    text.store(kept->emplace_back(with).c_str(), std::memory_order_release);
    return true;
}

}  // namespace

const char* name(CUresult code) noexcept {
    const Entry* found = entry(code);
    return found == nullptr ? nullptr : found->name.load(std::memory_order_acquire);
}

const char* description(CUresult code) noexcept {
    const Entry* found = entry(code);
    return found == nullptr ? nullptr : found->description.load(std::memory_order_acquire);
}

CUresult from_peer(int number) noexcept {
    const auto index = static_cast<std::size_t>(number);  // a negative number becomes one beyond the end
    const bool known = index < kMaxCode && entries()[index].name.load(std::memory_order_relaxed) != nullptr;
    return known ? static_cast<CUresult>(number) : CUDA_ERROR_UNKNOWN;
}

bool learn(int code, std::string_view name, std::string_view description) {
    if (code < 0 || static_cast<std::size_t>(code) >= kMaxCode) {
        return false;
    }
    if (name.size() > kMaxTextBytes || description.size() > kMaxTextBytes) {
        return false;
    }
    Entry& learned = entries()[static_cast<std::size_t>(code)];
    const Lock lock(learning);
    return replace(learned.name, name) && replace(learned.description, description);
}

}  // namespace gpupool::client::error_text
