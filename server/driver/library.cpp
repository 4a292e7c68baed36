#include "server/driver/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "protocol/calls/identity.h"

namespace gpupool::driver {
namespace {

namespace fs = std::filesystem;

template <class Pointer>
void find_symbol(void* handle, const char* name, Pointer& pointer) {
    pointer = reinterpret_cast<Pointer>(dlsym(handle, name));
}

template <class Function>
void find_symbol(void* handle, const char* name, Work<Function>& pointer) {
    pointer = reinterpret_cast<Function>(dlsym(handle, name));
}

void fill(void* handle, Library& library) {
#define GP_CALL(op, symbol, ...) find_symbol(handle, #symbol, library.api.symbol);
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
}

// The search path may lead to gpupool's own client. Loading that as the driver would connect to this server.
bool is_our_client(const Api& api) {
    const void* table = nullptr;
    return api.cuGetExportTable != nullptr && api.cuGetExportTable(&table, &calls::kClientIdentity) == CUDA_SUCCESS;
}

std::string real_path_of(void* handle) {
    const link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) {
        return {};
    }
    // Keeps the file name but resolves symbolic links of the folder.
    const fs::path path = map->l_name;
    std::error_code unknown;
    const fs::path folder = fs::canonical(path.parent_path(), unknown);
    return unknown ? path.string() : (folder / path.filename()).string();
}

Result<Library> open(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        return Error{ErrorCode::unavailable, dlerror()};
    }
    Library library;
    fill(handle, library);
    library.path = real_path_of(handle);
    const Api& api = library.api;
    if (api.cuInit == nullptr || api.cuDriverGetVersion == nullptr || api.cuDeviceGetCount == nullptr) {
        return Error{ErrorCode::unavailable, path + " is not a CUDA driver library (cuInit is missing)"};
    }
    if (is_our_client(api)) {
        return Error{ErrorCode::unavailable, library.path + " is gpupool's own client"};
    }
    library.kind = dlsym(handle, "gpupool_softgpu_identity") != nullptr ? Kind::software : Kind::nvidia;
    api.cuDriverGetVersion(&library.version);
    return library;
}

Status has_device(const Library& library) {
    if (const CUresult result = library.api.cuInit(0); result != CUDA_SUCCESS) {
        return Error{ErrorCode::unavailable, "cuInit of " + library.path + " gives error " + std::to_string(result)};
    }
    int count = 0;
    if (library.api.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
        return Error{ErrorCode::unavailable, library.path + " finds no GPU"};
    }
    return {};
}

// Where NVIDIA's library usually is. Absolute paths first, since LD_LIBRARY_PATH cannot divert them.
std::vector<std::string> candidates() {
    std::vector<std::string> paths;
    for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
                               "/run/nvidia/driver/usr/lib/x86_64-linux-gnu"}) {
        const fs::path path = fs::path(folder) / "libcuda.so.1";
        std::error_code ignored;
        if (fs::exists(path, ignored)) {
            paths.push_back(path);
        }
    }
    if (const char* search = std::getenv("LD_LIBRARY_PATH")) {
        std::string_view rest = search;
        while (!rest.empty()) {
            const std::size_t end = std::min(rest.find(':'), rest.size());
            const fs::path path = fs::path(rest.substr(0, end)) / "libcuda.so.1";
            std::error_code ignored;
            if (end != 0 && fs::exists(path, ignored)) {
                paths.push_back(path);
            }
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
    }
    paths.push_back("libcuda.so.1");
    return paths;
}

Result<Library> load_automatically() {
    std::string tried;
    for (const std::string& path : candidates()) {
        Result<Library> library = open(path);
        Status usable = library ? has_device(*library) : Status(library.error());
        if (usable) {
            return library;
        }
        tried += "\n  " + usable.error().message;
    }
    const std::string software = software_gpu_path();
    if (software.empty()) {
        return Error{ErrorCode::unavailable,
                     "no NVIDIA driver can be used, and the software GPU is not installed:" + tried};
    }
    return open(software);
}

}  // namespace

std::string software_gpu_path() {
    char executable[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", executable, sizeof executable - 1);
    if (length <= 0) {
        return {};
    }
    const fs::path folder = fs::path(std::string(executable, static_cast<std::size_t>(length))).parent_path();
    for (const fs::path& place : {folder, folder / "../lib", folder / "../lib/gpupool"}) {
        std::error_code ignored;
        const fs::path path = place / "libgpupool-softgpu.so";
        if (fs::exists(path, ignored)) {
            return fs::canonical(path, ignored);
        }
    }
    return {};
}

Result<Library> load(const std::string& setting) {
    if (setting == "auto") {
        return load_automatically();
    }
    if (setting == "software") {
        const std::string path = software_gpu_path();
        if (path.empty()) {
            return Error{ErrorCode::unavailable,
                         "the software GPU (libgpupool-softgpu.so) is not installed beside this program"};
        }
        return open(path);
    }
    return open(setting);
}

}  // namespace gpupool::driver
