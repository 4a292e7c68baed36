#include "client/core/images/jit_options.h"

#include <algorithm>
#include <cstring>

#include "protocol/calls/jit_options.h"

namespace gpupool::client {

JitOptions take_options(unsigned count, const CUjit_option* names, void** values) {
    JitOptions options;
    for (unsigned i = 0; i < count && names != nullptr && values != nullptr; ++i) {
        switch (names[i]) {
            case CU_JIT_INFO_LOG_BUFFER: options.info = static_cast<char*>(values[i]); break;
            case CU_JIT_ERROR_LOG_BUFFER: options.error = static_cast<char*>(values[i]); break;
            case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
                options.info_bytes = reinterpret_cast<std::size_t>(values[i]) & 0xffffffffu;
                options.info_size = &values[i];
                break;
            case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
                options.error_bytes = reinterpret_cast<std::size_t>(values[i]) & 0xffffffffu;
                options.error_size = &values[i];
                break;
            default:
                // Pointers to application data that the driver would read cannot be sent.
                if (!is_jit_pointer(names[i])) {
                    options.names.push_back(names[i]);
                    options.values.push_back(reinterpret_cast<std::uint64_t>(values[i]));
                }
        }
    }
    return options;
}

void give_log(const JitOptions& options, const std::vector<char>& log) {
    const auto put = [](const char* text, std::size_t length, char* buffer, std::size_t room, void** size) {
        std::size_t written = 0;
        if (buffer != nullptr && room != 0) {
            written = std::min(length, room - 1);
            std::memcpy(buffer, text, written);
            buffer[written] = '\0';
        }
        if (size != nullptr) {
            *size = reinterpret_cast<void*>(written);
        }
    };
    const std::size_t info = strnlen(log.data(), log.size());
    const std::size_t rest = std::min(info + 1, log.size());
    put(log.data(), info, options.info, options.info_bytes, options.info_size);
    put(log.data() + rest, strnlen(log.data() + rest, log.size() - rest), options.error, options.error_bytes,
        options.error_size);
}

}  // namespace gpupool::client
