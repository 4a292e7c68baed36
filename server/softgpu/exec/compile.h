// Compiles PTX text to a runnable module: variables with addresses, functions in internal form.
//
// Ownership: a CompiledModule owns its code and its variables' memory, which is registered in the AddressSpace.
// Threads: any thread may call compile(); a CompiledModule is read only afterwards.
// Errors: invalid_input for text that is not PTX and unsupported for PTX that the software GPU cannot run, both with
//   the line; limit_exceeded for a later version of PTX. A kernel that needs an unsupported instruction cannot run
//   (CompiledFunction::refusal); the module is only refused if none of its kernels can run.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "server/softgpu/exec/code.h"

namespace gpupool::softgpu {

// Ten times the compute capability of the software GPU.
constexpr std::uint32_t kOwnArchitecture = 90;

struct ModuleVariable {
    std::string name;
    std::uint64_t address = 0;
    std::uint64_t size_bytes = 0;
    bool managed = false;
};

// A texture or surface reference that the code declares.
struct ModuleReference {
    std::string name;
    bool surface = false;
};

class CompiledModule {
  public:
    CompiledModule() = default;
    ~CompiledModule();
    CompiledModule(const CompiledModule&) = delete;
    CompiledModule& operator=(const CompiledModule&) = delete;

    std::vector<CompiledFunction> functions;
    std::vector<ModuleVariable> variables;
    std::vector<ModuleReference> references;  // a launch has an object for each, in this order
    std::uint32_t ptx_version = 0;            // 90 for 9.0

    const ModuleVariable* find_variable(std::string_view name) const;
    std::vector<const CompiledFunction*> entries() const;  // the kernels that are defined

    std::uint8_t* memory = nullptr;
    std::size_t memory_bytes = 0;
};

// `max_registers` holds for kernels that have no limit of their own, 0: none. It only shows in the number of registers.
Result<std::unique_ptr<CompiledModule>> compile(std::string_view text, std::uint32_t max_registers = 0);

}  // namespace gpupool::softgpu
