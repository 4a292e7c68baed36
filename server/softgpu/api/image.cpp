#include "server/softgpu/api/image.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/fatbin/image.h"
#include "common/fatbin/select.h"
#include "common/fatbin/unpack.h"
#include "server/softgpu/api/device_runtime.h"
#include "server/softgpu/ptx/link.h"

namespace gpupool::softgpu {
namespace {

constexpr fatbin::ComputeCapability kCapability{kOwnArchitecture / 10, kOwnArchitecture % 10};

std::string machine_code_message(std::uint32_t arch) {
    const std::string name = arch == 0 ? "a GPU" : "sm_" + std::to_string(arch);
    return "the image holds only machine code for " + name +
           "; the software GPU runs PTX (compile with -gencode arch=compute_XX,code=compute_XX; the output of "
           "nvJitLink is machine code)";
}

std::string newer_target_message(std::uint32_t arch) {
    return "the image holds PTX for compute_" + std::to_string(arch) +
           " and later; the software GPU is of compute capability " + std::to_string(kCapability.major) + "." +
           std::to_string(kCapability.minor);
}

// Extracts a container's PTX, if it has any for this device. Otherwise the message says what the container has.
CUresult ptx_of_container(fatbin::Bytes container, std::string& text, std::string& message) {
    const auto entries = fatbin::container_entries(container);
    if (!entries) {
        message = entries.error().message;
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const auto chosen = fatbin::select(*entries, kCapability, fatbin::Preference::ptx_only);
    if (chosen.empty()) {
        std::uint32_t arch = 0, ptx_arch = ~0U;
        for (const auto& entry : *entries) {
            arch = std::max(arch, entry.arch);
            if (entry.kind == fatbin::Kind::ptx) {
                ptx_arch = std::min(ptx_arch, entry.arch);
            }
        }
        message = ptx_arch == ~0U ? machine_code_message(arch) : newer_target_message(ptx_arch);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const auto unpacked = fatbin::unpack(chosen.front());
    if (!unpacked) {
        message = unpacked.error().message;
        return CUDA_ERROR_INVALID_IMAGE;
    }
    text = std::string(unpacked->text());
    return CUDA_SUCCESS;
}

// nvcc links this library, as machine code, into every program of several units.
bool is_device_runtime(fatbin::Bytes container) {
    const auto entries = fatbin::container_entries(container);
    if (!entries) {
        return false;
    }
    for (const auto& entry : fatbin::select(*entries, kCapability, fatbin::Preference::cubin_only)) {
        const auto unpacked = fatbin::unpack(entry);
        if (!unpacked) {
            continue;
        }
        const auto bytes = unpacked->bytes();
        const std::string_view code(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        if (code.find(kDeviceRuntimeSymbol) != std::string_view::npos) {
            return true;
        }
    }
    return false;
}

}  // namespace

JitOptions read_jit_options(unsigned count, CUjit_option* options, void** values) {
    JitOptions result;
    if (options == nullptr || values == nullptr) {
        return result;
    }
    for (unsigned i = 0; i < count; ++i) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
            result.error_log = static_cast<char*>(values[i]);
        }
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            result.error_log_bytes = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(values[i]) & 0xFFFFFFFF);
            result.error_log_size_slot = &values[i];
        }
        if (options[i] == CU_JIT_MAX_REGISTERS) {
            result.max_registers = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(values[i]));
            result.valid = result.max_registers != 0;
        }
    }
    return result;
}

void write_jit_log(const JitOptions& options, const std::string& text) {
    if (!text.empty()) {
        std::fprintf(stderr, "gpupool software GPU: %s\n", text.c_str());
    }
    std::size_t written = 0;
    if (options.error_log != nullptr && options.error_log_bytes > 0) {
        written = std::min(text.size(), options.error_log_bytes - 1);
        std::memcpy(options.error_log, text.data(), written);
        options.error_log[written] = '\0';
    }
    // The driver returns the number of bytes written in the option's own slot.
    if (options.error_log_size_slot != nullptr) {
        *options.error_log_size_slot =
            reinterpret_cast<void*>(static_cast<std::uintptr_t>(text.empty() ? 0 : written + 1));
    }
}

CUresult ptx_of_image(const void* image, std::string& text, std::string& message) {
    auto inspected = fatbin::inspect_trusted(image);
    if (!inspected) {
        message = inspected.error().message;
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (inspected->form == fatbin::Form::ptx) {
        text.assign(static_cast<const char*>(image), strlen(static_cast<const char*>(image)));
        return CUDA_SUCCESS;
    }
    if (inspected->form == fatbin::Form::cubin) {
        // The ELF header's flags contain sm_XX: in bits 8 to 15 since CUDA 13, in bits 0 to 7 before.
        const auto* header = static_cast<const unsigned char*>(image);
        message = machine_code_message(header[0x31] >= 50 ? header[0x31] : header[0x30]);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    CUresult error = ptx_of_container(inspected->bytes, text, message);
    if (error != CUDA_ERROR_NO_BINARY_FOR_GPU) {
        return error;
    }
    // With separate compilation there is PTX of each unit, but not of the linked program.
    std::vector<ptx::Unit<std::string>> units;
    for (const fatbin::Bytes part : inspected->prelinked) {
        std::string unit;
        error = ptx_of_container(part, unit, message);
        if (error == CUDA_ERROR_NO_BINARY_FOR_GPU && is_device_runtime(part)) {
            unit = kDeviceRuntimePtx;
            error = CUDA_SUCCESS;
        }
        if (error == CUDA_ERROR_NO_BINARY_FOR_GPU) {
            break;
        }
        if (error != CUDA_SUCCESS) {
            return error;
        }
        units.push_back({std::move(unit)});
    }
    if (error != CUDA_SUCCESS) {
        return error;
    }
    text = ptx::join_units(units);
    message.clear();  // the units provide what the whole image lacked
    return CUDA_SUCCESS;
}

CUresult compile_text(const std::string& text, unsigned max_registers, std::shared_ptr<CompiledModule>& code,
                      std::string& message) {
    auto compiled = compile(text, max_registers);
    if (!compiled && compiled.error().code == ErrorCode::limit_exceeded) {
        message = "PTX " + compiled.error().message;
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (!compiled) {
        message = "PTX " + compiled.error().message;
        return CUDA_ERROR_INVALID_PTX;
    }
    code = std::move(*compiled);
    return CUDA_SUCCESS;
}

CUresult compile_image(const void* image, const JitOptions& options, std::string& text,
                       std::shared_ptr<CompiledModule>& code) {
    if (!options.valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::string message;
    CUresult error = ptx_of_image(image, text, message);
    if (error == CUDA_SUCCESS) {
        error = compile_text(text, options.max_registers, code, message);
    }
    write_jit_log(options, message);
    return error;
}

CUresult read_image_file(const char* path, std::string& image) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    image.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    // Padding, so that parsing a truncated image does not read beyond its end.
    image.append(4096, '\0');
    return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
