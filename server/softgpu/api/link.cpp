// The linker: combines PTX of several units into one image, which only the software GPU can load.
#include "server/softgpu/ptx/link.h"

#include <fstream>
#include <iterator>

#include "common/mutex.h"
#include "server/softgpu/api/device_runtime.h"
#include "server/softgpu/api/image.h"
#include "server/softgpu/ptx/parser.h"

namespace gpupool::softgpu {

struct LinkState {
    JitOptions options;
    Mutex mutex;
    std::vector<std::string> units GP_GUARDED_BY(mutex);
    // The program keeps a pointer to it, so it lives as long as the link state.
    std::string image GP_GUARDED_BY(mutex);
};

namespace {

constexpr std::size_t kMaxUnits = 4096;

Registry<LinkState>& link_states() {
    static Registry<LinkState>& instance = *new Registry<LinkState>;
    return instance;
}

CUresult fail(LinkState& state, CUresult error, const std::string& message) {
    write_jit_log(state.options, message);
    return error;
}

CUresult add(CUlinkState handle, CUjitInputType type, std::string unit, const char* name) {
    SOFTGPU_CONTEXT(context);
    const auto state = link_states().find(handle);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::string called = name == nullptr || *name == '\0' ? "a unit" : name;
    const Lock lock(state->mutex);
    if (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type == CU_JIT_INPUT_LIBRARY && unit.find(kDeviceRuntimeMember) != std::string::npos) {
        type = CU_JIT_INPUT_PTX;
        unit = kDeviceRuntimePtx;
    }
    if (type != CU_JIT_INPUT_PTX) {
        return fail(*state, CUDA_ERROR_NOT_SUPPORTED, called + " is not PTX: the software GPU links only PTX");
    }
    if (state->units.size() >= kMaxUnits) {
        return fail(*state, CUDA_ERROR_OUT_OF_MEMORY, "too many units to link");
    }
    // The size may include a terminating zero.
    unit.resize(std::min(unit.size(), unit.find('\0')));
    if (const auto parsed = ptx::parse(unit); !parsed) {
        const bool later = parsed.error().code == ErrorCode::unsupported;
        return fail(*state, later ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_INVALID_PTX,
                    "PTX of " + called + ": " + parsed.error().message);
    }
    state->units.push_back(std::move(unit));
    return CUDA_SUCCESS;
}

CUresult complete(CUlinkState handle, void** image, std::size_t* bytes) {
    SOFTGPU_CONTEXT(context);
    const auto state = link_states().find(handle);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    SOFTGPU_NOT_NULL(image);
    const Lock lock(state->mutex);
    std::string linked = ptx::join_units(state->units);
    // Compile it to find undefined symbols. Loading the image compiles it again.
    std::shared_ptr<CompiledModule> code;
    std::string message;
    if (compile_text(linked, code, message) != CUDA_SUCCESS) {
        return fail(*state, CUDA_ERROR_UNKNOWN, message);
    }
    state->image = std::move(linked);
    *image = state->image.data();
    if (bytes != nullptr) {
        *bytes = state->image.size() + 1;
    }
    return CUDA_SUCCESS;
}

CUresult create(unsigned count, CUjit_option* options, void** values, CUlinkState* result) {
    SOFTGPU_CONTEXT(context);
    if (result == nullptr || (count != 0 && (options == nullptr || values == nullptr))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto state = std::make_shared<LinkState>();
    state->options = read_jit_options(count, options, values);
    link_states().add(state);
    *result = reinterpret_cast<CUlinkState>(state.get());
    return CUDA_SUCCESS;
}

CUresult add_data(CUlinkState state, CUjitInputType type, const void* data, std::size_t bytes, const char* name) {
    SOFTGPU_READY();
    if (data == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return add(state, type, std::string(static_cast<const char*>(data), bytes), name);
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(path);
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    return add(state, type, {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, path);
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
    return create(count, options, values, state);
}
CUresult CUDAAPI cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
                                  unsigned, CUjit_option*, void**) {
    return add_data(state, type, data, bytes, name);
}
CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned, CUjit_option*,
                                  void**) {
    return add_file(state, type, path);
}
CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
    return complete(state, image, bytes);
}
CUresult CUDAAPI cuLinkDestroy(CUlinkState state) {
    SOFTGPU_READY();
    return link_states().remove(state) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

}  // extern "C"
