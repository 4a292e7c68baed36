#include "server/worker/images/images.h"

#include "common/compression.h"
#include "common/log.h"
#include "protocol/calls/image_hash.h"

namespace gpupool::worker {

ImageUse::Outcome ImageUse::obtain() {
    if (bytes_ == nullptr && store_ != nullptr) {
        bytes_ = store_->find(hash_);
        checked_ = from_store_ = bytes_ != nullptr;
    }
    if (bytes_ == nullptr) {
        return outcome_ = Outcome::wanted;
    }
    if (!checked_) {
        checked_ = hash_of(std::span(*bytes_).first(bytes_->size() - 1)) == hash_;  // without the NUL
    }
    return outcome_ = checked_ ? Outcome::ready : Outcome::false_name;
}

bool Images::has_room(std::uint64_t bytes) const {
    return total_bytes_ + bytes <= kMaxTotalBytes && images_.size() < kMaxImages;
}

CUresult Images::offer(const ImageHash& hash, std::uint64_t bytes) {
    const auto it = images_.find(hash);
    if (it != images_.end() && it->second.whole()) {
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
    if (!has_room(bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    total_bytes_ += bytes;
    Image& image = images_[hash];
    // Allocates nothing yet, because a client can announce images without sending them: the vector grows with the data.
    image.data = std::make_shared<std::vector<std::byte>>();
    image.bytes = bytes;
    return CUDA_SUCCESS;
}

CUresult Images::add(const ImageHash& hash, std::uint64_t offset, std::span<const unsigned char> data,
                     std::uint64_t unpacked_bytes) {
    const auto it = images_.find(hash);
    if (it == images_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Image& image = it->second;
    const std::uint64_t bytes = unpacked_bytes == 0 ? data.size() : unpacked_bytes;
    if (offset != image.received_bytes || bytes > image.bytes - offset || unpacked_bytes > kMaxPieceBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (image.whole()) {
        return CUDA_SUCCESS;  // an empty piece at the end of a complete image
    }
    if (image.data->empty()) {
        image.data->reserve(image.bytes + 1);
    }
    if (unpacked_bytes == 0) {
        const auto plain = std::as_bytes(data);
        image.data->insert(image.data->end(), plain.begin(), plain.end());
    } else {
        image.data->resize(offset + bytes);
        if (!decompress(std::as_bytes(data), std::span(*image.data).last(bytes))) {
            image.data->resize(offset);
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    image.received_bytes += bytes;
    if (image.whole()) {
        image.data->push_back(std::byte{0});
    }
    return CUDA_SUCCESS;
}

ImageUse Images::use(const ImageHash& hash) const {
    ImageUse use;
    use.hash_ = hash;
    use.store_ = store_;
    if (const auto it = images_.find(hash); it != images_.end() && it->second.whole()) {
        use.bytes_ = it->second.data;
        use.checked_ = it->second.checked;
    }
    return use;
}

void Images::record_outcome(const ImageUse& use) {
    const auto it = images_.find(use.hash_);
    if (use.outcome_ == ImageUse::Outcome::false_name) {
        log::warn("an image from the client does not match its hash and is not used");
        // Unless the client has sent it again meanwhile.
        if (it != images_.end() && it->second.data == use.bytes_) {
            total_bytes_ -= it->second.bytes;
            images_.erase(it);
        }
        return;
    }
    if (use.outcome_ == ImageUse::Outcome::wanted) {
        return;
    }
    if (use.from_store_) {
        if (const std::uint64_t bytes = use.bytes_->size() - 1; it == images_.end() && has_room(bytes)) {
            total_bytes_ += bytes;
            images_[use.hash_] = {use.bytes_, bytes, bytes, true};
        }
        return;
    }
    if (it == images_.end() || it->second.checked || it->second.data != use.bytes_) {
        return;
    }
    it->second.checked = true;
    if (store_ != nullptr) {
        store_->keep(use.hash_, use.bytes_);
    }
}

}  // namespace gpupool::worker
