// Code: PTX (with the compiler's logs), machine code and fat binaries, from memory and from files; libraries, kernels,
// their parameters and attributes; globals; occupancy; the linker.
#include "tests/gpu/modules.h"

#include <cstdint>
#include <fstream>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

// Checks that this module's code runs, with the kernel that has a parameter of every kind.
void run_code(CUmodule module, const char* what) {
    struct Triple {
        short first;
        double second;
        char third;
    };
    CUfunction function = nullptr;
    DRIVER_OK(cuModuleGetFunction(&function, module, "many_parameters"));
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, sizeof(double)));
    DRIVER_OK(launch(function, 1, 1, nullptr, char{1}, short{20}, 300, 4000LL, 0.5f, 0.25, Triple{7, 0.125, 2}, out));
    double seen = 0;
    DRIVER_OK(cuMemcpyDtoH(&seen, out, sizeof seen));
    check(seen == 1 + 20 + 300 + 4000 + 0.5 + 0.25 + 7 + 0.125 + 2, "%s: its code runs (%.3f)", what, seen);
    DRIVER_OK(cuMemFree(out));
}

void load(const char* what, const void* image) {
    CUmodule module = nullptr;
    DRIVER_OK(cuModuleLoadData(&module, image));
    run_code(module, what);
    DRIVER_OK(cuModuleUnload(module));
}

// Machine code for another architecture, or on a GPU that runs none, gives the same error as natively.
void load_machine_code(const Device& device) {
    CUmodule module = nullptr;
    const CUresult result = cuModuleLoadData(&module, kernels_cubin().data);
    const bool fits = device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9 && !device.is_software();
    if (!fits) {
        check(result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_INVALID_IMAGE,
              "machine code that does not fit is refused: %s", result_name(result).c_str());
        return;
    }
    DRIVER_OK(result);
    run_code(module, "machine code");
    DRIVER_OK(cuModuleUnload(module));
}

void load_with_logs() {
    char information[4096] = "untouched", errors[4096] = "untouched";
    float milliseconds = -1;
    CUjit_option names[] = {CU_JIT_INFO_LOG_BUFFER,  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_LOG_VERBOSE,      CU_JIT_WALL_TIME};
    void* values[] = {information,
                      reinterpret_cast<void*>(sizeof information),
                      errors,
                      reinterpret_cast<void*>(sizeof errors),
                      reinterpret_cast<void*>(1),
                      nullptr};
    CUmodule module = nullptr;
    DRIVER_OK(cuModuleLoadDataEx(&module, kernels_ptx().data, 6, names, values));
    memcpy(&milliseconds, &values[5], sizeof milliseconds);
    check(milliseconds >= 0, "time to compile: %.1f ms", static_cast<double>(milliseconds));
    note("the compiler's log: %.100s", information);  // may be empty when the result came from a cache
    run_code(module, "PTX with logs");
    DRIVER_OK(cuModuleUnload(module));

    static const char broken[] =
        ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry broken() { nonsense.u32 %r1; ret; }\n";
    strcpy(errors, "");
    values[1] = reinterpret_cast<void*>(sizeof information);  // the driver returns the lengths here
    values[3] = reinterpret_cast<void*>(sizeof errors);
    values[5] = nullptr;
    check_result(cuModuleLoadDataEx(&module, broken, 6, names, values), CUDA_ERROR_INVALID_PTX, "broken PTX");
    check(strlen(errors) > 0, "and an error log gives the reason");
    note("%.100s", errors);
}

void load_file(const char* what, const Image& image) {
    char path[] = "/tmp/gpupool-module-XXXXXX";
    const int descriptor = mkstemp(path);
    if (descriptor < 0) {
        give_up("mkstemp", strerror(errno), __FILE__, __LINE__);
    }
    close(descriptor);
    std::ofstream(path, std::ios::binary).write(static_cast<const char*>(image.data), static_cast<long>(image.bytes));
    CUmodule module = nullptr;
    const CUresult result = cuModuleLoad(&module, path);
    unlink(path);
    DRIVER_OK(result);
    run_code(module, what);
    DRIVER_OK(cuModuleUnload(module));
}

void globals() {
    const Module module(kernels_ptx().data);
    CUdeviceptr counter = 0, table = 0, out = 0;
    size_t bytes = 0;
    DRIVER_OK(cuModuleGetGlobal(&counter, &bytes, module.get(), "device_counter"));
    check(bytes == 4, "size of a global");
    unsigned value = 0;
    DRIVER_OK(cuMemcpyDtoH(&value, counter, sizeof value));
    check(value == 5, "initial value of a global (%u)", value);
    value = 1000;
    DRIVER_OK(cuMemcpyHtoD(counter, &value, sizeof value));
    DRIVER_OK(cuModuleGetGlobal(&table, &bytes, module.get(), "constant_table"));
    check(bytes == 32, "size of a table of constants");
    value = 77;
    DRIVER_OK(cuMemcpyHtoD(table + 12, &value, sizeof value));
    DRIVER_OK(cuMemAlloc(&out, 32));
    DRIVER_OK(launch(module.function("use_globals"), 1, 8, nullptr, out));
    unsigned seen[8] = {};
    DRIVER_OK(cuMemcpyDtoH(seen, out, sizeof seen));
    check(seen[0] == 1010 && seen[3] == 1077 && seen[7] == 1080, "a kernel sees the changed values");
    const Module again(kernels_ptx().data);
    DRIVER_OK(launch(again.function("use_globals"), 1, 8, nullptr, out));
    DRIVER_OK(cuMemcpyDtoH(seen, out, sizeof seen));
    check(seen[0] == 15 && seen[3] == 45, "the same image loaded again has its own");
    DRIVER_OK(cuMemFree(out));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("modules", argc, argv);
    const Device device;
    program.section("ptx", [] { load("PTX", kernels_ptx().data); });
    program.section("machine_code", [&] { load_machine_code(device); });
    program.section("fat_binary", [] { load("fat binary", kernels_fatbin().data); });
    program.section("logs", load_with_logs);
    program.section("files", [&] {
        load_file("PTX from a file", kernels_ptx());
        load_file("fat binary from a file", kernels_fatbin());
    });
    program.section("globals", globals);
    program.section("attributes", function_attributes);
    program.section("parameters", parameter_layout);
    program.section("occupancy", [&] { occupancy(device); });
    program.section("shared_memory", [&] { large_shared_memory(device); });
    program.section("attributes_in_order", attributes_in_order);
    program.section("attributes_beside_a_stuck_stream", attributes_beside_a_stuck_stream);
    program.section("textures_in_order", textures_in_order, device.is_software());
    program.section("libraries", libraries);
    program.section("enumeration", enumeration);
    program.section("linker", link_two_units);
    program.section("legacy_launches", legacy_launches);
    program.section("legacy_linker", legacy_linker);
    program.section("more_ways_to_load", more_ways_to_load);
    program.section("more_occupancy", [&] { more_occupancy(device); });
    program.section("null_handles", null_handles);
    program.section("without_a_context", [&] { without_a_context(device); });
    program.section("constants_and_registers", constants_and_registers);
    program.section("occupancy_limits", occupancy_limits);
    program.section("links_that_do_not_fit", links_that_do_not_fit);
    program.section("unload_waits", unload_waits);
    return program.finish();
}
