// The counterpart of tests/programs/report.h for the driver API: checked calls, sections selected by name, and a device
// with its context.
//
// Every program here takes names of its sections (none: all), NAME=NUMBER settings, and --list. It links only against
// libcuda.so.1, of any vendor.
//
// Threads: any, except where noted. Errors: DRIVER_OK ends the program, since results after a failed call are
// meaningless; check_result only counts.
#pragma once

#include <cuda.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/programs/report.h"

namespace gpupool::programs {

std::string result_name(CUresult result);  // "CUDA_ERROR_INVALID_VALUE (1)"
void driver_ok(CUresult result, const char* call, const char* file, int line);
bool check_result(CUresult actual, CUresult expected, const char* what);

// The sections and settings given on the command line.
class Program {
  public:
    Program(const char* name, int argc, char** argv, unsigned limit_in_seconds = 180);

    long long number(const std::string& name, long long otherwise) const;
    bool flag(std::string_view name) const;  // --name
    // Runs `body` when the section was selected, by its name or because none was named. A section that is not
    // `by_default` runs only when named.
    void section(const std::string& name, const std::function<void()>& body, bool by_default = true);
    int finish();

  private:
    std::string name_;
    std::vector<std::string> wanted_;
    std::vector<std::string> flags_;
    std::map<std::string, long long> numbers_;
    bool list_only_ = false;
    std::vector<std::string> known_;
};

// Initializes the driver, retains device 0's primary context and makes it current; releases it at the end.
class Device {
  public:
    Device();
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    CUdevice device() const { return device_; }
    CUcontext context() const { return context_; }
    void use() const;  // makes the context current to the calling thread
    int attribute(CUdevice_attribute attribute) const;
    // The software GPU cannot run machine code; its device name identifies it.
    bool is_software() const;

  private:
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
};

// A module of the embedded kernels (kernels/*.cu).
class Module {
  public:
    explicit Module(const void* image);
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    CUmodule get() const { return module_; }
    CUfunction function(const char* name) const;

  private:
    CUmodule module_ = nullptr;
};

// Launches with these parameters; grid and block are one-dimensional.
template <class... Parameters>
CUresult launch(CUfunction function, unsigned blocks, unsigned threads, CUstream stream, Parameters... parameters) {
    void* addresses[] = {static_cast<void*>(&parameters)..., nullptr};
    return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, nullptr);
}

// The per-thread form of a call, as Function, a function pointer.
template <class Function>
Function per_thread_form(const char* name) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    driver_ok(cuGetProcAddress(name, &address, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status), name,
              __FILE__, __LINE__);
    if (address == nullptr) {
        give_up(name, "no per-thread form", __FILE__, __LINE__);
    }
    return reinterpret_cast<Function>(address);
}

// The function that libcuda.so.1 exports by this name, for forms of calls that cuda.h no longer declares.
void* exported_address(const char* name);
template <class Function>
Function exported(const char* name) {
    return reinterpret_cast<Function>(exported_address(name));
}

// The kernel `spin` ends by itself after this many rounds, some ten seconds, if nothing releases it.
constexpr unsigned kSpinLimit = 40'000'000;

// Runs this program again with `argument` and returns its wait status, for work that could damage this process.
int run_self(const char* argument);

// Runs `work` in a forked child, for a minute at most; true when the child ended by itself and no check failed in it.
bool child_succeeds(const std::function<void()>& work);

}  // namespace gpupool::programs

#define DRIVER_OK(call) ::gpupool::programs::driver_ok((call), #call, __FILE__, __LINE__)
