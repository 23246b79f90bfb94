import pytest


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, run_python):
    """The folder of a run on two devices; here is one."""
    folder = tmp_path_factory.mktemp('run')
    code = (
        'import sys; sys.path.append("tests/generate"); from small_runs import make_run; '
        'make_run(sys.argv[1], vocab_size=300)'
    )
    run_python('-c', code, str(folder), devices=2)
    return folder
