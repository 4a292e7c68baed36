#include "tests/gpu/driver.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>

extern char** environ;

namespace gpupool::programs {

std::string result_name(CUresult result) {
    const char* name = nullptr;
    cuGetErrorName(result, &name);
    return std::string(name != nullptr ? name : "an unknown result") + " (" + std::to_string(result) + ")";
}

void driver_ok(CUresult result, const char* call, const char* file, int line) {
    if (result != CUDA_SUCCESS) {
        give_up(call, result_name(result).c_str(), file, line);
    }
}

bool check_result(CUresult actual, CUresult expected, const char* what) {
    return check(actual == expected, "%s: %s, expected %s", what, result_name(actual).c_str(),
                 result_name(expected).c_str());
}

Program::Program(const char* name, int argc, char** argv, unsigned limit_in_seconds) : name_(name) {
    for (int i = 1; i < argc; i++) {
        const std::string argument = argv[i];
        const size_t equals = argument.find('=');
        if (argument == "--list") {
            list_only_ = true;
        } else if (argument.rfind("--", 0) == 0) {
            flags_.push_back(argument.substr(2));
        } else if (equals != std::string::npos) {
            numbers_[argument.substr(0, equals)] = strtoll(argument.c_str() + equals + 1, nullptr, 10);
        } else {
            wanted_.push_back(argument);
        }
    }
    limit_seconds(limit_in_seconds);
}

long long Program::number(const std::string& name, long long otherwise) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? otherwise : found->second;
}

bool Program::flag(std::string_view name) const {
    return std::find(flags_.begin(), flags_.end(), name) != flags_.end();
}

void Program::section(const std::string& name, const std::function<void()>& body, bool by_default) {
    known_.push_back(name);
    const bool named = std::find(wanted_.begin(), wanted_.end(), name) != wanted_.end();
    if (list_only_) {
        printf("%s%s\n", name.c_str(), by_default ? "" : " (only when named)");
    } else if (named || (by_default && wanted_.empty())) {
        printf("%s: %s\n", name_.c_str(), name.c_str());
        fflush(stdout);
        body();
    }
}

int Program::finish() {
    for (const std::string& wanted : wanted_) {
        const bool known = std::find(known_.begin(), known_.end(), wanted) != known_.end();
        if (!known) {
            check(false, "there is no section %s; --list shows them", wanted.c_str());
        }
    }
    return list_only_ ? 0 : programs::finish(name_.c_str());
}

Device::Device() {
    DRIVER_OK(cuInit(0));
    DRIVER_OK(cuDeviceGet(&device_, 0));
    DRIVER_OK(cuDevicePrimaryCtxRetain(&context_, device_));
    use();
}

Device::~Device() {
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(device_);
}

void Device::use() const {
    DRIVER_OK(cuCtxSetCurrent(context_));
}

int Device::attribute(CUdevice_attribute attribute) const {
    int value = -1;
    DRIVER_OK(cuDeviceGetAttribute(&value, attribute, device_));
    return value;
}

bool Device::is_software() const {
    char name[256] = {};
    DRIVER_OK(cuDeviceGetName(name, sizeof name, device_));
    return strcasestr(name, "software") != nullptr;
}

Module::Module(const void* image) {
    DRIVER_OK(cuModuleLoadData(&module_, image));
}

Module::~Module() {
    cuModuleUnload(module_);
}

CUfunction Module::function(const char* name) const {
    CUfunction function = nullptr;
    const CUresult result = cuModuleGetFunction(&function, module_, name);
    if (result != CUDA_SUCCESS) {
        give_up(name, result_name(result).c_str(), __FILE__, __LINE__);
    }
    return function;
}

void* exported_address(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* const address = library != nullptr ? dlsym(library, name) : nullptr;
    if (address == nullptr) {
        give_up(name, "not exported by libcuda.so.1", __FILE__, __LINE__);
    }
    return address;
}

int run_self(const char* argument) {
    fflush(stdout);
    char program[] = "/proc/self/exe";
    char* arguments[] = {program, const_cast<char*>(argument), nullptr};
    pid_t child = -1;
    int status = -1;
    if (posix_spawn(&child, program, nullptr, nullptr, arguments, environ) == 0) {
        waitpid(child, &status, 0);
    }
    return status;
}

bool child_succeeds(const std::function<void()>& work) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        limit_seconds(60);
        work();
        fflush(stdout);
        _exit(failed_checks.load() == 0 ? 0 : 1);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace gpupool::programs
