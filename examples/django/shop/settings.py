import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("SECRET_KEY", "of a sample")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["counterfoil.django", "shop"]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "HOST": os.environ.get("MYSQL_HOST", "127.0.0.1"),
        "PORT": os.environ.get("MYSQL_PORT", "3306"),
        "NAME": os.environ.get("MYSQL_DATABASE", "shop"),
        "USER": os.environ.get("MYSQL_USER", "root"),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}
COUNTERFOIL = {
    "REDIS": os.environ.get("COUNTERFOIL_REDIS", "redis://localhost"),
    "NAMESPACE": "shop",
    "DAEMON": os.environ.get("COUNTERFOIL_DAEMON", "http://127.0.0.1:9292"),
    "TOML": BASE_DIR / "counterfoil.toml",
}
