// Options of the JIT compiler and linker, as the driver takes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/jit_options.h"

namespace gpupool::worker {

inline constexpr std::size_t kMaxLogBytes = 64u << 10;

// The driver's log buffers and the program's numeric options, in the form that the driver takes.
struct JitOptions {
    std::vector<CUjit_option> options;
    std::vector<void*> values;
    std::vector<char> info, error;
    bool valid = true;  // false: contains an option that the client may not set; the driver must not get any of it

    JitOptions(const std::vector<int>& names, const std::vector<std::uint64_t>& numbers, std::size_t log_bytes) {
        for (std::size_t i = 0; i < names.size() && i < numbers.size(); ++i) {
            valid = valid && names[i] >= 0 && names[i] < CU_JIT_NUM_OPTIONS && !is_jit_pointer(names[i]);
            options.push_back(static_cast<CUjit_option>(names[i]));
            values.push_back(reinterpret_cast<void*>(numbers[i]));
        }
        if (log_bytes == 0) {
            return;
        }
        info.resize(log_bytes / 2);
        error.resize(log_bytes - log_bytes / 2);
        add(CU_JIT_INFO_LOG_BUFFER, info.data());
        add(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(info.size()));
        add(CU_JIT_ERROR_LOG_BUFFER, error.data());
        add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(error.size()));
    }

    // The info and error logs, each with a NUL, cut to `log_bytes`.
    [[nodiscard]] std::string log(std::size_t log_bytes) const {
        std::string text(info.begin(), std::find(info.begin(), info.end(), '\0'));
        text += '\0';
        text.append(error.begin(), std::find(error.begin(), error.end(), '\0'));
        text += '\0';
        if (text.size() > log_bytes) {
            text.resize(log_bytes);
        }
        return text;
    }

  private:
    void add(CUjit_option option, void* value) {
        options.push_back(option);
        values.push_back(value);
    }
};

}  // namespace gpupool::worker
