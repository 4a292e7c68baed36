#include "server/worker/images.h"

namespace gpupool::worker {

CUresult Images::offer(const ImageHash& hash, std::uint64_t bytes, bool& known) {
    const auto it = images_.find({hash.high, hash.low});
    known = it != images_.end() && it->second.received_bytes == it->second.bytes;
    if (known) {
        return CUDA_SUCCESS;
    }
    if (bytes == 0 || bytes > kMaxImageBytes) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (it != images_.end()) {
        if (it->second.bytes != bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        it->second.data->clear();
        it->second.received_bytes = 0;
        return CUDA_SUCCESS;
    }
    if (total_bytes_ + bytes > kMaxTotalBytes || images_.size() >= kMaxImages) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    total_bytes_ += bytes;
    Image& image = images_[{hash.high, hash.low}];
    image.data = std::make_shared<std::vector<std::byte>>();  // an offer is only words: it grows with the data
    image.bytes = bytes;
    return CUDA_SUCCESS;
}

CUresult Images::add(const ImageHash& hash, std::uint64_t offset, std::span<const unsigned char> data) {
    const auto it = images_.find({hash.high, hash.low});
    if (it == images_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Image& image = it->second;
    if (offset != image.received_bytes || data.size() > image.bytes - offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (image.received_bytes == image.bytes) {
        return CUDA_SUCCESS;  // nothing, at the end of a whole image
    }
    if (image.data->empty()) {
        image.data->reserve(image.bytes + 1);
    }
    const auto bytes = std::as_bytes(data);
    image.data->insert(image.data->end(), bytes.begin(), bytes.end());
    image.received_bytes += data.size();
    if (image.received_bytes == image.bytes) {
        image.data->push_back(std::byte{0});
    }
    return CUDA_SUCCESS;
}

std::shared_ptr<const std::vector<std::byte>> Images::find(const ImageHash& hash) const {
    const auto it = images_.find({hash.high, hash.low});
    if (it == images_.end() || it->second.received_bytes != it->second.bytes) {
        return nullptr;
    }
    return it->second.data;
}

}  // namespace gpupool::worker
