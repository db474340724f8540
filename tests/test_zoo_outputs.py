"""What RL Zoo's commands make of a trained agent: plots, a video, an upload."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from matplotlib import pyplot as plt

from tests.helpers.zoo import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the logs of two tiny training runs."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        tiny = "-n 300 --eval-freq 100 --eval-episodes 2 -params n_envs:2 n_episodes:4"
        for seed in range(2):
            run(monkeypatch, folder, f"train --algo apois --env CartPole-v1 --seed {seed} {tiny}")
    return folder


def test_plots(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plt.switch_backend("agg")
    run(monkeypatch, trained, "plot_train -a apois -e CartPole-v1 -f logs -w 2")
    assert plt.gca().has_data()
    run(monkeypatch, trained, "all_plots -a apois -e CartPole-v1 -f logs -o plots --no-display -min 200")
    assert (trained / "plots.pkl").is_file()
    run(monkeypatch, trained, "plot_from_file -i plots.pkl -o curve.png --format png")
    assert (trained / "curve.png").read_bytes().startswith(b"\x89PNG")
    plt.close("all")


def test_video(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, trained, "record_video --algo apois --env CartPole-v1 -f logs -n 10 --no-render -o videos")
    (video,) = (trained / "videos").glob("*.mp4")
    assert video.stat().st_size > 0


class Hub:
    """A hub that keeps what is uploaded to it."""

    uploads: list[dict[str, str]]

    def create_repo(self, repo_id: str, **kwargs: Any) -> str:
        """
        :param repo_id: name of the repository
        :param kwargs: how to create it
        :return: its address
        """
        return f"hub:{repo_id}"

    def snapshot_download(self, repo_id: str, local_dir: Path) -> None:
        """
        :param repo_id: name of the repository
        :param local_dir: where to put its files: none
        """
        Path(local_dir).mkdir(parents=True)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
        """
        :param repo_id: name of the repository
        :param folder_path: what to upload
        :param commit_message: how to call it
        """
        files = {file.name: file.read_text() for file in Path(folder_path).iterdir() if file.suffix in (".md", ".yml")}
        self.uploads.append({"repo_id": repo_id, "zip": str(list(Path(folder_path).glob("*.zip"))), **files})


def test_upload(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[dict[str, str]] = []
    monkeypatch.setattr(Hub, "uploads", uploads, raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    run(monkeypatch, trained, "push_to_hub --algo apois --env CartPole-v1 -f logs -orga ours --no-render")
    (upload,) = uploads
    assert upload["repo_id"] == "ours/apois-CartPole-v1" and "apois-CartPole-v1.zip" in upload["zip"]
    assert "mean_reward" in upload["README.md"] and "**APOIS**" in upload["README.md"]
    assert "n_episodes" in upload["config.yml"]
