// The kernels of a code image and where their parameters lie: what a launch must copy out of the application's argument
// array. The server's driver knows the same (cuFuncGetParamInfo, since 12.4); these tables serve where it cannot be
// asked.
//
// Ownership: values. Threads: any. Errors: Result; the contents may come from a peer, every access is checked.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/fatbin/image.h"

namespace gpupool::fatbin {

constexpr std::size_t max_kernels = 65536;
constexpr std::size_t max_kernel_parameters = 8192;
constexpr std::uint32_t max_parameter_block_bytes = 32764;

struct KernelParameter {
    std::uint32_t offset_bytes = 0;
    std::uint32_t size_bytes = 0;
    bool operator==(const KernelParameter&) const = default;
};

struct KernelLayout {
    std::string name;  // as the linker sees it
    std::vector<KernelParameter> parameters;
    std::uint32_t parameter_block_bytes = 0;
};

// From the symbols and the .nv.info records of an ELF cubin, in the order of the symbol table.
Result<std::vector<KernelLayout>> cubin_kernels(Bytes cubin);

// From the .entry declarations of a PTX text, in their order.
Result<std::vector<KernelLayout>> ptx_kernels(std::string_view text);

}  // namespace gpupool::fatbin
