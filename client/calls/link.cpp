// The JIT linker. Inputs are sent as images are. The linked code comes back and is kept until the program destroys the
// link state.

#include <map>
#include <memory>

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"
#include "client/core/images/images.h"
#include "client/core/images/jit_options.h"
#include "common/mutex.h"

namespace gpupool::client::entry {
namespace {

struct Link {
    JitOptions options;  // the log buffers belong to the application and stay valid until the state is destroyed
    std::vector<unsigned char> cubin;
};

struct Links {
    Mutex mutex;
    std::map<CUlinkState, std::shared_ptr<Link>> states GP_GUARDED_BY(mutex);
};
Links& links() {
    static auto& instance = *new Links;
    return instance;
}

std::shared_ptr<Link> find_link(CUlinkState state) {
    Links& all = links();
    const Lock lock(all.mutex);
    const auto it = all.states.find(state);
    return it == all.states.end() ? nullptr : it->second;
}

CUresult create(unsigned count, CUjit_option* options, void** values, CUlinkState* out) {
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto link = std::make_shared<Link>();
    link->options = take_options(count, options, values);
    CUlinkState state = nullptr;
    const CUresult result =
        remote<calls::gpLinkCreate>(&state, link->options.names.data(), link->options.values.data(),
                                    static_cast<unsigned>(link->options.names.size()), link->options.log_bytes());
    if (result == CUDA_SUCCESS) {
        Links& all = links();
        const Lock lock(all.mutex);
        all.states[state] = std::move(link);
        *out = state;
    }
    return result;
}

CUresult add(CUlinkState state, CUjitInputType type, const void* data, std::size_t bytes, const char* name,
             unsigned count, CUjit_option* options, void** values) {
    const std::shared_ptr<Link> link = find_link(state);
    if (link == nullptr || data == nullptr || bytes == 0) {
        return link == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    const JitOptions own = take_options(count, options, values);
    std::vector<char> log(link->options.log_bytes() + 1);
    const std::span image(static_cast<const std::byte*>(data), bytes);
    const CUresult result = call_with_image(image, [&](const ImageHash* hash, unsigned* wanted) {
        return remote<calls::gpLinkAdd>(state, type, hash, wanted, bytes, name, own.names.data(), own.values.data(),
                                        static_cast<unsigned>(own.names.size()), log.data(), link->options.log_bytes());
    });
    give_log(link->options, log);
    return result;
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path, unsigned count, CUjit_option* options,
                  void** values) {
    std::vector<char> content;
    if (path == nullptr || !read_image_file(path, content)) {
        return path == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    const std::size_t bytes = type == CU_JIT_INPUT_PTX ? content.size() : content.size() - 1;
    return add(state, type, content.data(), bytes, path, count, options, values);
}

}  // namespace

CUresult cuLinkCreate(unsigned numOptions, CUjit_option* options, void** optionValues, CUlinkState* stateOut) {
    return create(numOptions, options, optionValues, stateOut);
}
CUresult cuLinkCreate_v2(unsigned numOptions, CUjit_option* options, void** optionValues, CUlinkState* stateOut) {
    return create(numOptions, options, optionValues, stateOut);
}
CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, std::size_t size, const char* name,
                       unsigned numOptions, CUjit_option* options, void** optionValues) {
    return add(state, type, data, size, name, numOptions, options, optionValues);
}
CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, std::size_t size, const char* name,
                          unsigned numOptions, CUjit_option* options, void** optionValues) {
    return add(state, type, data, size, name, numOptions, options, optionValues);
}
CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned numOptions,
                       CUjit_option* options, void** optionValues) {
    return add_file(state, type, path, numOptions, options, optionValues);
}
CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned numOptions,
                          CUjit_option* options, void** optionValues) {
    return add_file(state, type, path, numOptions, options, optionValues);
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, std::size_t* sizeOut) {
    const std::shared_ptr<Link> link = find_link(state);
    if (link == nullptr || cubinOut == nullptr) {
        return link == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    constexpr std::size_t kPartBytes = 128u << 10, kMaxBytes = std::size_t{1} << 30;
    std::size_t bytes = 0;
    std::vector<char> log(link->options.log_bytes() + 1);
    CUresult result = remote<calls::gpLinkComplete>(state, &bytes, log.data(), link->options.log_bytes());
    give_log(link->options, log);
    if (result != CUDA_SUCCESS || bytes > kMaxBytes) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    link->cubin.resize(bytes);
    for (std::size_t offset = 0; offset < bytes && result == CUDA_SUCCESS; offset += kPartBytes) {
        result =
            remote<calls::gpLinkRead>(state, offset, link->cubin.data() + offset, std::min(kPartBytes, bytes - offset));
    }
    if (result == CUDA_SUCCESS) {
        *cubinOut = link->cubin.data();
        if (sizeOut != nullptr) {
            *sizeOut = bytes;
        }
    }
    return result;
}

CUresult cuLinkDestroy(CUlinkState state) {
    {
        Links& all = links();
        const Lock lock(all.mutex);
        if (all.states.erase(state) == 0) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    return remote<calls::gpLinkDestroy>(state);
}

}  // namespace gpupool::client::entry
