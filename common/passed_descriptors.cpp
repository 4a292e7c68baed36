#include "common/passed_descriptors.h"

#include <cstring>

namespace gpupool {

void attach_descriptors(msghdr& message, char* control, std::span<const int> descriptors) noexcept {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const entry = CMSG_FIRSTHDR(&message);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(entry), descriptors.data(), descriptors.size_bytes());
}

std::vector<UniqueFd> take_descriptors(msghdr& message) {
    std::vector<UniqueFd> descriptors;
    for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr; entry = CMSG_NXTHDR(&message, entry)) {
        if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
            descriptors.emplace_back(descriptor);
        }
    }
    return descriptors;
}

}  // namespace gpupool
