// Code images of a session, and images kept for later sessions.

#include "server/worker/images/images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/compression.h"
#include "common/digest.h"
#include "protocol/calls/image_hash.h"
#include "server/images/image_folders.h"
#include "tests/unit/thread_shortage.h"

namespace gpupool::test {
namespace {

namespace fs = std::filesystem;
using worker::ImageBytes;
using worker::Images;
using worker::ImageStore;
using worker::ImageUse;
using Outcome = ImageUse::Outcome;

std::span<const unsigned char> bytes_of(const std::string& text) {
    return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

ImageHash hash(const std::string& text) {
    return hash_of(std::as_bytes(bytes_of(text)));
}

ImageUse used(Images& images, const ImageHash& name) {
    ImageUse use = images.use(name);
    use.obtain();
    images.record_outcome(use);
    return use;
}

CUresult give(Images& images, const std::string& text) {
    const CUresult offered = images.offer(hash(text), text.size());
    return offered == CUDA_SUCCESS ? images.add(hash(text), 0, bytes_of(text)) : offered;
}

TEST(ImagesOfASession, AreCompleteWithTheirLastByte) {
    Images images;
    const std::string text = "12345";
    ASSERT_EQ(images.offer(hash(text), 5), CUDA_SUCCESS);
    EXPECT_EQ(images.add(hash(text), 0, bytes_of(text).first(3)), CUDA_SUCCESS);
    EXPECT_EQ(used(images, hash(text)).outcome(), Outcome::wanted);
    EXPECT_EQ(images.add(hash(text), 3, bytes_of(text).subspan(3)), CUDA_SUCCESS);
    const ImageUse use = used(images, hash(text));
    ASSERT_EQ(use.outcome(), Outcome::ready);
    EXPECT_EQ(use.bytes()->size(), 6u);
    EXPECT_EQ(use.bytes()->back(), std::byte{0}) << "PTX is text: it ends with a NUL";
    EXPECT_EQ((*use.bytes())[4], std::byte{'5'});
    ASSERT_EQ(images.offer(hash(text), 5), CUDA_SUCCESS);
    EXPECT_EQ(used(images, hash(text)).outcome(), Outcome::ready) << "a repeated offer changes nothing";
}

TEST(ImagesOfASession, RefuseDataThatContradictsTheOffer) {
    Images images;
    const std::string text = "12345678";
    const ImageHash name = hash(text);
    EXPECT_EQ(images.offer(name, 0), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(images.offer(name, Images::kMaxImageBytes + 1), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(images.offer(name, ~std::uint64_t{0}), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(images.add(name, 0, bytes_of(text)), CUDA_ERROR_INVALID_VALUE) << "a refused offer accepts no data";
    EXPECT_EQ(images.add(hash("9"), 0, bytes_of(text)), CUDA_ERROR_INVALID_VALUE) << "never offered";
    ASSERT_EQ(images.offer(name, 8), CUDA_SUCCESS);
    EXPECT_EQ(images.add(name, 4, bytes_of(text).first(4)), CUDA_ERROR_INVALID_VALUE) << "a gap";
    EXPECT_EQ(images.add(name, ~std::uint64_t{0}, bytes_of(text).first(4)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(images.add(name, 0, bytes_of(text).first(5)), CUDA_SUCCESS);
    EXPECT_EQ(images.add(name, 5, bytes_of(text).first(4)), CUDA_ERROR_INVALID_VALUE) << "beyond its end";
    EXPECT_EQ(images.add(name, 5, {}), CUDA_SUCCESS) << "empty data is allowed";
    EXPECT_EQ(images.add(name, 5, bytes_of(text).subspan(5)), CUDA_SUCCESS);
    EXPECT_EQ(used(images, name).outcome(), Outcome::ready);
    EXPECT_EQ(images.add(name, 8, bytes_of(text).first(1)), CUDA_ERROR_INVALID_VALUE) << "the image is complete";
}

TEST(ImagesOfASession, OfferMayBeRepeatedWithTheSameSize) {
    Images images;
    const std::string text = "7777";
    ASSERT_EQ(images.offer(hash(text), 4), CUDA_SUCCESS);
    EXPECT_EQ(images.add(hash(text), 0, bytes_of(text).first(2)), CUDA_SUCCESS);
    EXPECT_EQ(images.offer(hash(text), 5), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(images.offer(hash(text), 4), CUDA_SUCCESS);
    EXPECT_EQ(images.add(hash(text), 0, bytes_of(text)), CUDA_SUCCESS);
    EXPECT_EQ(used(images, hash(text)).outcome(), Outcome::ready);
}

TEST(ImagesOfASession, MayBeCompressed) {
    Images images;
    const std::string text(300000, 'x');
    const auto half = std::as_bytes(bytes_of(text)).first(150000);
    const auto packed = compress(half);
    ASSERT_TRUE(packed);
    EXPECT_LT(packed->size(), 1000u);
    const std::span piece(reinterpret_cast<const unsigned char*>(packed->data()), packed->size());
    ASSERT_EQ(images.offer(hash(text), text.size()), CUDA_SUCCESS);
    EXPECT_EQ(images.add(hash(text), 0, piece, 150001), CUDA_ERROR_INVALID_VALUE) << "it unpacks to fewer bytes";
    EXPECT_EQ(images.add(hash(text), 0, piece, 149999), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(images.add(hash(text), 0, piece.first(piece.size() / 2), 150000), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(images.add(hash(text), 0, piece, 150000), CUDA_SUCCESS);
    EXPECT_EQ(images.add(hash(text), 150000, piece, 150000), CUDA_SUCCESS);
    EXPECT_EQ(used(images, hash(text)).outcome(), Outcome::ready);
}

TEST(ImagesOfASession, IncompressibleDataIsNotCompressed) {
    std::string noise;
    for (unsigned i = 0, state = 1; i < 100000; ++i) {
        state = state * 1664525u + 1013904223u;
        noise.push_back(static_cast<char>(state >> 24));
    }
    EXPECT_FALSE(compress(std::as_bytes(bytes_of(noise))));
    EXPECT_FALSE(compress({}));
}

class KeptImages : public ::testing::Test {
  protected:
    static std::string make_root() {
        char path[] = "/tmp/gpupool-images-XXXXXX";
        return ::mkdtemp(path);
    }
    ~KeptImages() override { fs::remove_all(root_); }

    std::unique_ptr<ImageStore> open(const std::string& tenant = "one", std::uint64_t limit_bytes = 1u << 20) {
        auto folder = folders_.open(tenant);
        EXPECT_TRUE(folder) << folder.error().message;
        limit_bytes_ = limit_bytes;
        return std::make_unique<ImageStore>(std::move(*folder), limit_bytes);
    }
    // As a session does, and then the daemon.
    void keep(ImageStore& store, const std::string& text) {
        auto image = std::make_shared<std::vector<std::byte>>();
        for (const char c : text) {
            image->push_back(static_cast<std::byte>(c));
        }
        image->push_back(std::byte{0});
        store.keep(hash(text), image);
        store.finish(std::chrono::seconds(20));
        folders_.trim(limit_bytes_);
    }
    std::string file_of(const std::string& text, const std::string& tenant = "one") const {
        return root_ + "/" + tenant + "/" + to_string(sha256(std::as_bytes(bytes_of(text))));
    }
    // Makes the image's last use appear this long ago.
    void age(const std::string& text, int seconds, const std::string& tenant = "one") const {
        const timespec then[2] = {{std::time(nullptr) - seconds, 0}, {std::time(nullptr) - seconds, 0}};
        EXPECT_EQ(::utimensat(AT_FDCWD, file_of(text, tenant).c_str(), then, 0), 0);
    }

    static constexpr std::uint64_t kFileBytes = ImageFolders::kLeastFileBytes;  // of each small image

    const std::string root_ = make_root();
    ImageFolders folders_{root_};
    std::uint64_t limit_bytes_ = 0;
};

TEST_F(KeptImages, AreFoundOnlyByLaterSessionsOfTheTenant) {
    Images first;
    const auto store = open();
    first.set_store(store.get());
    EXPECT_EQ(used(first, hash("image")).outcome(), Outcome::wanted);
    ASSERT_EQ(give(first, "image"), CUDA_SUCCESS);
    ASSERT_EQ(used(first, hash("image")).outcome(), Outcome::ready);
    store->finish(std::chrono::seconds(20));
    struct stat facts {};
    ASSERT_EQ(::stat(file_of("image").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0666u) << "for the tenant's other workers, which are other users";
    ASSERT_EQ(::stat((root_ + "/one").c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0777u);

    const auto again = open();
    Images second;
    second.set_store(again.get());
    const ImageUse use = used(second, hash("image"));
    ASSERT_EQ(use.outcome(), Outcome::ready);
    ASSERT_EQ(use.bytes()->size(), 6u);
    EXPECT_EQ(use.bytes()->back(), std::byte{0});

    const auto others = open("other");
    EXPECT_EQ(others->find(hash("image")), nullptr);
}

TEST_F(KeptImages, WrongHashIsNeitherUsedNorKept) {
    Images images;
    const auto store = open();
    images.set_store(store.get());
    ASSERT_EQ(images.offer(hash("good"), 4), CUDA_SUCCESS);
    ASSERT_EQ(images.add(hash("good"), 0, bytes_of("evil")), CUDA_SUCCESS);
    EXPECT_EQ(used(images, hash("good")).outcome(), Outcome::false_name);
    store->finish(std::chrono::seconds(20));
    EXPECT_FALSE(fs::exists(file_of("good")));
    EXPECT_EQ(give(images, "good"), CUDA_SUCCESS) << "the right data may still be added";
    EXPECT_EQ(used(images, hash("good")).outcome(), Outcome::ready);
}

TEST_F(KeptImages, DamagedFilesAreRemoved) {
    const auto store = open();
    for (const char* damage : {"", "imag", "imagf", "image and more"}) {
        keep(*store, "image");
        ASSERT_NE(store->find(hash("image")), nullptr);
        std::ofstream(file_of("image"), std::ios::trunc) << damage;
        EXPECT_EQ(store->find(hash("image")), nullptr) << damage;
        EXPECT_FALSE(fs::exists(file_of("image"))) << damage;
    }
}

TEST_F(KeptImages, OnlyRegularFilesAreRead) {
    const auto store = open();
    std::ofstream(root_ + "/outside") << "image";
    fs::create_symlink(root_ + "/outside", file_of("image"));
    EXPECT_EQ(store->find(hash("image")), nullptr);
    fs::remove(file_of("image"));
    ASSERT_EQ(::mkfifo(file_of("image").c_str(), 0600), 0);
    EXPECT_EQ(store->find(hash("image")), nullptr) << "the read does not wait for a writer";
}

TEST_F(KeptImages, ForeignFilesAreKept) {
    fs::create_directories(root_ + "/data");
    std::ofstream(root_ + "/data/precious") << "another program's";
    std::ofstream(root_ + "/note") << "another program's";
    const auto store = open("one", kFileBytes + 100);
    for (const char letter : {'a', 'b', 'c'}) {
        keep(*store, std::string(1000, letter));
    }
    EXPECT_FALSE(fs::exists(file_of(std::string(1000, 'a')))) << "an old image must be evicted";
    EXPECT_TRUE(fs::exists(root_ + "/data/precious"));
    EXPECT_TRUE(fs::exists(root_ + "/note"));
}

TEST_F(KeptImages, LeastRecentlyUsedImageIsEvicted) {
    const auto store = open("one", 2 * kFileBytes + 100);
    const std::string a(1000, 'a'), b(1000, 'b'), c(1000, 'c');
    keep(*store, a);
    keep(*store, b);
    age(a, 20);
    age(b, 10);
    ASSERT_NE(store->find(hash(a)), nullptr) << "makes b the least recently used";
    keep(*store, c);
    EXPECT_TRUE(fs::exists(file_of(a)));
    EXPECT_FALSE(fs::exists(file_of(b)));
    EXPECT_TRUE(fs::exists(file_of(c)));
    const std::string d(2 * kFileBytes + 200, 'd');
    keep(*store, d);
    EXPECT_FALSE(fs::exists(file_of(d))) << "larger than the limit";
    EXPECT_TRUE(fs::exists(file_of(a)));
}

TEST_F(KeptImages, TenantWithMostMemoryIsEvictedFirst) {
    constexpr auto kLimit = 3 * kFileBytes + 100;
    const auto large = open("large", kLimit), small = open("small", kLimit);
    const std::string a(1000, 'a'), b(1000, 'b'), c(1000, 'c'), d(1000, 'd');
    keep(*small, a);
    age(a, 100, "small");
    keep(*large, b);
    keep(*large, c);
    age(b, 50, "large");
    keep(*large, d);
    EXPECT_TRUE(fs::exists(file_of(a, "small"))) << "the oldest image, but of the tenant with less";
    EXPECT_FALSE(fs::exists(file_of(b, "large")));
    EXPECT_TRUE(fs::exists(file_of(d, "large")));
}

TEST_F(KeptImages, NothingIsKeptWithoutAWriterThread) {
    const auto store = open();
    {
        const ThreadShortage shortage;
        keep(*store, "image");
    }
    EXPECT_FALSE(fs::exists(file_of("image")));
    keep(*store, "image");
    EXPECT_TRUE(fs::exists(file_of("image"))) << "threads can be started again";
}

TEST_F(KeptImages, DiskUsageCounts) {
    const auto store = open("one", 3 * kFileBytes);
    const std::string texts[] = {"1", "2", "3", "4"};
    for (int i = 0; i < 4; ++i) {
        keep(*store, texts[i]);
        if (i < 3) {
            age(texts[i], 100 - i);
        }
    }
    EXPECT_FALSE(fs::exists(file_of(texts[0]))) << "each file counts with its disk blocks";
    EXPECT_TRUE(fs::exists(file_of(texts[1])));
    EXPECT_TRUE(fs::exists(file_of(texts[3])));
}

TEST_F(KeptImages, NumberOfFilesIsLimited) {
    const auto store = open("one", std::uint64_t{1} << 40), other = open("other", std::uint64_t{1} << 40);
    keep(*other, "another's");
    for (std::size_t i = 0; i < ImageFolders::kMaxFiles + 10; ++i) {
        std::ofstream file(root_ + "/one/" + fmt::format("{:064x}", i));
    }
    keep(*store, "image");
    store->finish(std::chrono::seconds(100));
    const auto files = fs::directory_iterator(root_ + "/one");
    EXPECT_EQ(static_cast<std::size_t>(
                  std::count_if(begin(files), end(files), [](const auto& entry) { return entry.is_regular_file(); })),
              ImageFolders::kMaxFiles);
    EXPECT_TRUE(fs::exists(file_of("image"))) << "the newest";
    EXPECT_TRUE(fs::exists(file_of("another's", "other")));
}

TEST_F(KeptImages, LeftoversOfDeadWritersAreRemoved) {
    const auto store = open();
    const std::string left = root_ + "/one/.new-1-left", fresh = root_ + "/one/.new-2-fresh";
    std::ofstream(left) << "half";
    std::ofstream(fresh) << "half";
    const timespec then[2] = {{std::time(nullptr) - 3600, 0}, {std::time(nullptr) - 3600, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, left.c_str(), then, 0), 0);
    keep(*store, "image");
    EXPECT_FALSE(fs::exists(left));
    EXPECT_TRUE(fs::exists(fresh)) << "its writer may still run";
}

TEST_F(KeptImages, UnwritableStoreKeepsNothing) {
    const auto store = open();
    keep(*store, "image");
    fs::remove_all(root_ + "/one");  // the store still has the folder open, and cannot create files in it
    keep(*store, "other");
    EXPECT_EQ(store->find(hash("other")), nullptr);
    EXPECT_FALSE(ImageFolders("/proc/nothing").open("one"));
}

}  // namespace
}  // namespace gpupool::test
