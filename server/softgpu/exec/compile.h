// PTX text to a module that can run: variables with addresses, functions in internal form.
//
// Ownership: a CompiledModule owns its code and its variables' memory, which is in the AddressSpace while it lives.
// Threads: compile() from any; a CompiledModule is read only afterwards. Errors: invalid_input for text that is not
// PTX, unsupported for what the software GPU lacks, both with the line. What it lacks makes the kernels that need it
// unable to run (CompiledFunction::refusal), and the module only when all of its kernels do;
// limit_exceeded for PTX of a later version.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "server/softgpu/exec/code.h"

namespace gpupool::softgpu {

// What the software GPU is: ten times its compute capability.
constexpr std::uint32_t kOwnArchitecture = 90;

struct ModuleVariable {
    std::string name;
    std::uint64_t address = 0;
    std::uint64_t size_bytes = 0;
    bool managed = false;
};

class CompiledModule {
  public:
    CompiledModule() = default;
    ~CompiledModule();
    CompiledModule(const CompiledModule&) = delete;
    CompiledModule& operator=(const CompiledModule&) = delete;

    std::vector<CompiledFunction> functions;
    std::vector<ModuleVariable> variables;
    std::uint32_t ptx_version = 0;  // 90 for 9.0

    const ModuleVariable* find_variable(std::string_view name) const;

    std::uint8_t* memory = nullptr;
    std::size_t memory_bytes = 0;
};

Result<std::unique_ptr<CompiledModule>> compile(std::string_view text);

}  // namespace gpupool::softgpu
